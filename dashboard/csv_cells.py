"""Text in CSV files, which people open in spreadsheets."""


def no_formula(text: str) -> str:
    """The text, with an apostrophe before what a spreadsheet would run as a formula (OWASP, "CSV injection")."""
    return f"'{text}" if text[:1] in ("=", "+", "-", "@", "\t", "\r") else text
