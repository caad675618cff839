"""Settings of every test."""

import os

from hypothesis import settings

# Two cores may be busy with a server's start: how long an example takes says nothing. In CI every run tries the same
# examples, so that a change is judged by itself; new ones are tried wherever people work.
settings.register_profile("patient", deadline=None, derandomize="CI" in os.environ)
settings.load_profile("patient")
