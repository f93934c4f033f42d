"""Settings that every test shares."""

from hypothesis import settings

# No deadlines: machines are shared, and a slow moment is not a wrong result. The same examples every time;
# `fuzz` looks for new ones.
settings.register_profile("house", deadline=None, derandomize=True)
settings.register_profile("fuzz", deadline=None, max_examples=20_000)
settings.load_profile("house")
