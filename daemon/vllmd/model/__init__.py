"""The nouns: frozen values that all stages share."""
