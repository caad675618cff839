"""Every labelled log gets its class and a remedy that its label accepts, and none that it forbids."""

import pytest

from corpus_score import DATA, Labelled, answer_to, in_folder, in_list, wrong_with

PUBLIC = in_folder(DATA / "corpus")
CAPTURED = in_list(DATA / "logs" / "labels.yaml")
WRITTEN = in_list(DATA / "written.yaml")
REPORTED = in_list(DATA / "reported.yaml")


@pytest.mark.parametrize("case", [*PUBLIC, *CAPTURED, *WRITTEN, *REPORTED], ids=lambda case: case.name)
def test_a_labelled_log_is_understood(case: Labelled) -> None:
    """Class and remedy are right, and nothing that the label forbids is proposed."""
    assert wrong_with(answer_to(case), case.expected) == []


@pytest.mark.parametrize("case", [*PUBLIC, *CAPTURED, *REPORTED], ids=lambda case: case.name)
def test_an_answer_explains_itself(case: Labelled) -> None:
    """It says why in a sentence, and shows a line wherever something failed."""
    answer = answer_to(case)
    assert answer["advice"]
    assert answer["tunable"] == bool(answer["set"] or answer["env"])
    assert answer["evidence"] is not None or answer["class"] == "clean-exit"
