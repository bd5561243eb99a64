"""The default model's card: its page is what the record beside it says, which holds counts and rates and no name."""

from __future__ import annotations

import json
import re

from scripts.write_model_card import COMMAND, PAGE, RECORD, card_from, written
from simulation.faces.models import sface


def test_the_page_is_written_from_the_record() -> None:
    assert PAGE.read_text(encoding="utf-8") == written(), "run python -m scripts.write_model_card, and commit the page"


def test_the_record_is_of_this_model_and_names_nobody() -> None:
    kept = json.loads(RECORD.read_text(encoding="utf-8"))
    record = kept["record"]
    assert record["model_id"] == sface().model_id
    assert record["command"] == COMMAND
    text = RECORD.read_text(encoding="utf-8")
    assert "/" not in re.sub(re.escape(COMMAND), "", text)
    rates = record["groups"]["rates"]
    assert sum(each["people"] for each in rates) == record["identities"]
    compared = [each["fmr"]["of"] for each in (*rates, *record["groups"]["between"])]
    assert sum(compared) == record["non_mated"]


def test_no_age_was_measured_and_the_card_says_so() -> None:
    told = written()
    assert "Not for children up to 12 years: nobody measured them." in told
    assert "Not measured: twins and other close relatives." in told
    card = card_from(json.loads(RECORD.read_text(encoding="utf-8")))
    assert {each.attribute for each in card.group_rates()} == {"group"}
