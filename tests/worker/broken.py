"""A module that cannot be imported."""

broken = 1 / 0
