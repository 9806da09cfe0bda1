"""The checks of the documentation site in a headless browser, which scripts/check_site.py runs."""
