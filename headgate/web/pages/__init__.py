"""The pages, one file a noun."""
