"""Whoever passes letters on can neither read, forge, replay nor change them; two stories are caught."""

from __future__ import annotations

import hashlib
import os
from dataclasses import replace
from pathlib import Path

import pytest

from kinfolk.deploy.letters import Identity, Refused, Said, contradict
from kinfolk.errors import KinfolkError

ANN, BOB, EVE = Identity.new(), Identity.new(), Identity.new()
PLACE = {"run": "r", "round": "3", "swap": "sums", "letters": "17", "from": "ann", "to": "bob"}
TEXT = b"a model of forty bytes, which is private"


def test_only_the_receiver_reads_and_nothing_of_the_text_is_in_the_letter():
    letter = ANN.seal(TEXT, BOB.public, PLACE)
    assert BOB.open(letter, ANN.public, PLACE)[0] == TEXT
    assert not any(TEXT[i : i + 4] in letter for i in range(len(TEXT) - 4))
    with pytest.raises(Refused):
        EVE.open(letter, ANN.public, PLACE)
    with pytest.raises(Refused):
        ANN.open(letter, ANN.public, PLACE)


def test_equal_texts_make_letters_that_share_nothing():
    one, other = (ANN.seal(TEXT, BOB.public, PLACE) for _ in range(2))
    assert sum(a == b for a, b in zip(one, other, strict=True)) < len(one) / 8


@pytest.mark.parametrize("key", sorted(PLACE))
def test_a_letter_is_good_at_its_own_place_only(key: str):
    letter = ANN.seal(TEXT, BOB.public, PLACE)
    with pytest.raises(Refused):
        BOB.open(letter, ANN.public, {**PLACE, key: PLACE[key] + "1"})


def test_every_bit_counts():
    letter = ANN.seal(TEXT, BOB.public, PLACE)
    for i in range(0, 8 * len(letter), 7):
        changed = bytearray(letter)
        changed[i // 8] ^= 1 << i % 8
        with pytest.raises(Refused):
            BOB.open(bytes(changed), ANN.public, PLACE)
    for cut in (0, 1, 31, 32, 47, len(letter) - 1):
        with pytest.raises(Refused):
            BOB.open(letter[:cut], ANN.public, PLACE)


def test_sealing_is_not_enough_without_the_senders_signature():
    """The relay knows everybody's public keys, and may seal what it likes in ann's name."""
    forged = EVE.seal(TEXT, BOB.public, PLACE)
    with pytest.raises(Refused, match="not signed"):
        BOB.open(forged, ANN.public, PLACE)


def test_a_receiver_cannot_hand_on_a_letter_as_if_it_were_for_another():
    """Bob may seal ann's signed text anew for eve; the place that ann signed names bob."""
    _, said = BOB.open(ANN.seal(TEXT, BOB.public, PLACE), ANN.public, PLACE)
    assert said.by(ANN.public)
    assert not replace(said, place={**PLACE, "to": "eve"}).by(ANN.public)


def word(text: bytes, place: dict[str, str]) -> Said:
    alike = {"opinions": hashlib.sha256(text).hexdigest()}
    return BOB.open(
        ANN.seal(b"to " + place["to"].encode() + text, BOB.public, place, alike), ANN.public, place
    )[1]


def test_two_letters_that_differ_prove_that_the_sender_said_both():
    eve = {**PLACE, "to": "eve"}
    mine, yours, same = word(b"trust: 0.9", PLACE), word(b"trust: 0.1", eve), word(b"trust: 0.9", eve)
    assert contradict(ANN.public, mine, yours) == "opinions"
    assert not contradict(ANN.public, mine, same)  # other words to each, but the same opinions
    # Nobody can make such a proof: neither with words of their own nor out of two different rounds.
    assert not contradict(ANN.public, mine, replace(mine, alike=yours.alike))
    assert not contradict(ANN.public, mine, BOB.say(b"trust: 0.1", eve, yours.alike))
    for key in ("round", "swap", "letters", "run"):
        assert not contradict(ANN.public, mine, word(b"trust: 0.1", {**eve, key: "4"}))
    assert not contradict(BOB.public, mine, yours)


def test_keys_are_their_owners_alone(tmp_path: Path):
    path = tmp_path / "kit" / "site.key"
    ANN.save(path)
    assert path.stat().st_mode & 0o077 == 0
    assert Identity.load(path) == ANN
    os.chmod(path, 0o640)
    with pytest.raises(KinfolkError, match="chmod 600"):
        Identity.load(path)
    path.write_bytes(b"short")
    os.chmod(path, 0o600)
    with pytest.raises(KinfolkError, match="no key of a site"):
        Identity.load(path)


def test_keys_never_follow_from_a_seed():
    import torch

    torch.manual_seed(1)
    one = Identity.new()
    torch.manual_seed(1)
    assert Identity.new().public != one.public
