"""The pure verbs: from what was seen to what should be done."""
