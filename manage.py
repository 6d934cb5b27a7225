#!/usr/bin/env python
"""Django's command line."""

import os
import sys

from parallel_core.processes import die_with_told_parent


def main() -> None:
    die_with_told_parent()
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "dashboard.settings")
    from django.core.exceptions import ImproperlyConfigured
    from django.core.management import execute_from_command_line

    try:
        execute_from_command_line(sys.argv)
    except ImproperlyConfigured as error:
        raise SystemExit(str(error)) from None


if __name__ == "__main__":
    main()
