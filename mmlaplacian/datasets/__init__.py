"""Datasets made from data that ships inside packages."""
