"""The effects of reactive applications."""
