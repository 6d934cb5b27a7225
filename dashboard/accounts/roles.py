"""Who may do what: viewer reads; member submits and changes their own; admin (staff) changes all.

A member is a user in the group `members`; everyone signed in is at least a viewer.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Literal

from django.contrib.auth.models import Group
from django.db.models import prefetch_related_objects
from django.http import HttpRequest

Role = Literal["viewer", "member", "admin"]
MEMBERS = "members"


def make_member(user: Any) -> Any:
    """Puts the user into the members' group (made on first use) and returns the user."""
    group, _ = Group.objects.get_or_create(name=MEMBERS)
    user.groups.add(group)
    return user


def role_of(user: Any) -> Role:
    """The role of a signed-in user. The groups are read once for each user object, that is once a request, however many
    rows ask; changes that are made through the object are seen."""
    if user.is_staff:
        return "admin"
    prefetch_related_objects([user], "groups")
    return "member" if any(group.name == MEMBERS for group in user.groups.all()) else "viewer"


def may_submit(user: Any) -> bool:
    return bool(user.is_authenticated and user.is_active) and role_of(user) != "viewer"


def may_change(user: Any, owned: Any) -> bool:
    """Whether `user` may cancel, edit or delete something with an `owner`; without one, as after its account was
    deleted, any member may."""
    return may_submit(user) and (user.is_staff or owned.owner_id in (None, user.pk))


def in_templates(request: HttpRequest) -> dict[str, Any]:
    """Context processor: puts `may_submit` into every template, so that viewers are not offered what starts a run.

    It is a callable, so that the database is queried only where a template uses it.
    """
    return {"may_submit": partial(may_submit, request.user)} if hasattr(request, "user") else {}
