"""Users in Django's admin. There is no sign-up: staff create accounts and choose roles here."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.contrib.admin.models import LogEntry
from django.contrib.auth.admin import UserAdmin
from django.contrib.auth.forms import UserCreationForm
from django.contrib.auth.models import Group, User
from django.db.models import ManyToManyField, QuerySet
from django.forms import CheckboxSelectMultiple
from django.http import HttpRequest

from dashboard.accounts.admin_mixins import KnownRowsMixin, ReadOnlyAdmin, is_staff
from dashboard.accounts.roles import MEMBERS, make_member, role_of
from parallel_core.analysis.quantities import listed_text

admin.site.site_header = "Trainyard administration"
admin.site.site_title = "Trainyard"
admin.site.index_title = "Accounts, workers and records"
admin.site.unregister(User)
admin.site.unregister(Group)  # a role is being in the one group that there is

ROLES = (
    "No group: viewer (reads). Group 'members': submits runs, and cancels and deletes their own. "
    "Staff: admin of the yard."
)


@admin.register(User)
class YardUserAdmin(KnownRowsMixin, UserAdmin):
    """Django's user admin, with the role in the list, and in both forms instead of Django's permissions, which have no
    use here. A password is the only way to sign in, so a new account cannot be made without one."""

    add_form = UserCreationForm
    readonly_fields = ("last_login", "date_joined")
    filter_horizontal = ()
    formfield_overrides = {ManyToManyField: {"widget": CheckboxSelectMultiple}}
    list_display = ("username", "role", "is_active", "last_login")
    list_filter = ("is_active", "is_staff", "groups")
    actions = ("make_members", "make_viewers")
    fieldsets = (
        (None, {"fields": ("username", "password")}),
        ("Role", {"fields": ("is_active", "groups", "is_staff", "is_superuser"), "description": ROLES}),
        ("Name and address", {"fields": ("first_name", "last_name", "email")}),
        ("Dates", {"fields": ("last_login", "date_joined")}),
    )
    add_fieldsets = (
        (None, {"classes": ("wide",), "fields": ("username", "password1", "password2")}),
        ("Role", {"fields": ("groups", "is_staff"), "description": ROLES}),
    )

    def get_queryset(self, request: HttpRequest) -> QuerySet[User]:
        return super().get_queryset(request).prefetch_related("groups")

    def has_module_permission(self, request: HttpRequest) -> bool:
        return is_staff(request)

    def has_view_permission(self, request: HttpRequest, obj: User | None = None) -> bool:
        return is_staff(request)

    def has_add_permission(self, request: HttpRequest) -> bool:
        return is_staff(request)

    def has_change_permission(self, request: HttpRequest, obj: User | None = None) -> bool:
        """Only superusers may change superusers: otherwise staff could set a superuser's password and sign in."""
        return is_staff(request) and (_is_superuser(request) or obj is None or not obj.is_superuser)

    def get_deleted_objects(self, objs: Any, request: HttpRequest) -> Any:
        """Django would say that an admin may not delete runs, which is not so: an account that has any stays. Nor may
        anybody delete log entries by themselves; but with the account of who did what they tell, they go."""
        objects, counts, refused, protected = super().get_deleted_objects(objs, request)
        if said := _what_stays(objs):
            return objects, counts, set(), [said]
        return objects, counts, refused - {LogEntry._meta.verbose_name}, protected

    def get_fieldsets(self, request: HttpRequest, obj: User | None = None) -> Any:
        """Hides from staff that somebody is a superuser: staff must not make one."""
        found = super().get_fieldsets(request, obj)
        if obj is None or _is_superuser(request):
            return found
        return [(title, _for_staff(dict(options))) for title, options in found]

    @admin.display(description="role")
    def role(self, user: User) -> str:
        return role_of(user)

    @admin.action(description="Make members (may submit runs)")
    def make_members(self, request: HttpRequest, users: QuerySet[User]) -> None:
        for user in users:
            make_member(user)

    @admin.action(description="Make viewers (may only look)")
    def make_viewers(self, request: HttpRequest, users: QuerySet[User]) -> None:
        for user in users:
            user.groups.remove(*Group.objects.filter(name=MEMBERS))


@admin.register(LogEntry)
class LogAdmin(ReadOnlyAdmin):
    """What was changed in the admin, and what anybody deleted (`dashboard.deletions`)."""

    list_display = ("action_time", "user", "done", "what")
    list_filter = ("action_flag", "user")
    search_fields = ("object_repr", "change_message")
    list_select_related = ("user",)
    fields = ("action_time", "user", "done", "what", "said")

    @admin.display(description="done", ordering="action_flag")
    def done(self, entry: LogEntry) -> str:
        return str(entry.get_action_flag_display()).lower()

    @admin.display(description="of", ordering="object_repr")
    def what(self, entry: LogEntry) -> str:
        return entry.object_repr

    @admin.display(description="what had been changed of it, or was")
    def said(self, entry: LogEntry) -> str:
        return entry.get_change_message()


def _what_stays(users: Any) -> str:
    """What these users have made that keeps their accounts, and what to do instead of deleting them; '' if nothing
    does."""
    words = {"runs": "runs", "studies": "studies", "corpora": "texts", "traces": "traces"}
    counts = {word: sum(getattr(user, name).count() for user in users) for name, word in words.items()}
    named = listed_text([f"{word} ({count})" for word, count in counts.items() if count])
    instead = "Clear “Active” of the account instead: nobody signs in with it, and its tokens are refused"
    return f"{named}. {instead}; or delete these first on the pages of the yard." if named else ""


def _is_superuser(request: HttpRequest) -> bool:
    return bool(request.user.is_active and request.user.is_superuser)


def _for_staff(options: dict[str, Any]) -> dict[str, Any]:
    fields = tuple(field for field in options["fields"] if field != "is_superuser")
    return {**options, "fields": fields}
