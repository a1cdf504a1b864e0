// Browsers refuse workers on pages opened from disk. There, run the script of a worker in a hidden frame instead:
// same messages, same answers, so that search works without a server.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      this.waiting = []
      const frame = document.createElement("iframe")
      frame.hidden = true
      document.documentElement.appendChild(frame)
      this.frame = frame
      const inner = frame.contentWindow
      // What the script posts goes to whoever made the worker.
      inner.postMessage = data => this.tell(structuredClone(data))
      const script = frame.contentDocument.createElement("script")
      script.src = new URL(url, location.href).href
      script.onload = () => {
        this.ready = true
        this.waiting.splice(0).forEach(data => this.hand(data))
      }
      script.onerror = () => this.onerror && this.onerror(new Event("error"))
      frame.contentDocument.head.appendChild(script)
    }
    tell(data) {
      setTimeout(() => this.onmessage && this.onmessage(new MessageEvent("message", { data })))
    }
    hand(data) {
      const inner = this.frame.contentWindow
      setTimeout(() => inner && inner.dispatchEvent(new MessageEvent("message", { data })))
    }
    // Both sides change what they get, so each gets a copy, as from a real worker.
    postMessage(message) {
      const data = structuredClone(message)
      this.ready ? this.hand(data) : this.waiting.push(data)
    }
    terminate() {
      this.frame.remove()
    }
  }
}
