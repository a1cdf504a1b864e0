"""Secure sums: a server that folds models into means learns the means, and no single model.

A client keeps what it has trained. It shares it out among the members of its group (`kinfolk.shares`), and
what it answers the server is one part of the group's sum, which alone looks random. Of a request whose
replies are folded into means, `asking` makes the requests that this takes; `holding` and `member` are what
clients do. What is hidden, from whom, and what is not: docs/privacy/secure-sums.md.
"""
