"""A template tag with what takes room on the disks: Django's own admin pages get no context from views of ours."""

from __future__ import annotations

from django.template import Library

from dashboard.accounts.disk import Use, uses

register = Library()


@register.simple_tag
def disk_uses() -> list[Use]:
    return uses()
