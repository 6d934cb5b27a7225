"""As on all other pages: 3 Nov 2026 18:05 UTC."""

DATE_FORMAT = "j M Y"
DATETIME_FORMAT = r"j M Y H:i \U\T\C"
