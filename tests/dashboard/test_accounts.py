"""Sign-in, role checks for every address, API tokens, the admin."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import urlencode

import pytest
from django.contrib.auth.models import Group, User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import URLPattern, URLResolver, get_resolver
from django.utils import timezone

from dashboard.accounts.roles import MEMBERS, make_member, role_of
from dashboard.api.models import ApiToken
from dashboard.fleet.models import Worker
from dashboard.runs import removal, services
from dashboard.runs.models import Run, State
from tests.dashboard import factory

pytestmark = pytest.mark.django_db
OPEN = ("/accounts/login/",)


def addresses(patterns: Any = None, prefix: str = "/") -> list[str]:
    """Every address of the site outside the admin and the API, with 1 for each number, 'x' for each word and 0s for
    each sha256.
    """
    out = []
    for pattern in patterns or get_resolver().url_patterns:
        plain = re.sub(r"\(\?P<sha256>[^)]*\)", "0" * 64, str(pattern.pattern)).removeprefix("^").removesuffix("$")
        route = prefix + re.sub(r"<int:[^>]*>", "1", re.sub(r"<(slug|str):[^>]*>", "x", plain))
        if isinstance(pattern, URLResolver):
            if not route.startswith(("/admin", "/api")):
                out += addresses(pattern.url_patterns, route)
        elif isinstance(pattern, URLPattern):
            out.append(route)
    return out


@pytest.mark.parametrize("address", addresses())
def test_strangers_see_only_the_sign_in(client: Client, address: str) -> None:
    for method in ("get", "post"):
        answer = getattr(client, method)(address)
        if address in OPEN:
            assert answer.status_code == 200
        else:
            assert answer.status_code in (302, 401, 403, 405), (method, address)
            assert answer.status_code != 302 or answer["Location"].startswith("/accounts/login/"), address


def test_who_may_not_administer_is_told_so_and_finds_the_way_back(client: Client, alice: Any) -> None:
    client.force_login(alice)
    answer = client.get("/admin/", follow=True)
    assert answer.status_code == 403 and len(answer.redirect_chain) == 1, "no loop"
    page = answer.content.decode()
    assert "Only admins may open the administration. An admin of this yard can change your role." in page
    assert 'href="/runs/"' in page


def test_the_admin_has_the_sign_in_of_all_pages_and_leads_back_from_it(client: Client, admin: Any) -> None:
    """It had one of its own, which looked like another product."""
    wanted = "/admin/auth/user/?o=1"
    for address in (wanted, f"/admin/login/?{urlencode({'next': wanted})}"):
        asked = client.get(address, follow=True)
        assert asked.redirect_chain == [("/accounts/login/?next=/admin/auth/user/%3Fo%3D1", 302)]
        assert asked.context["next"] == wanted
    word = {"username": admin.get_username(), "password": "root-secret-1", "next": wanted}
    assert client.post("/accounts/login/", word)["Location"] == wanted
    assert client.get("/admin/login/")["Location"] == "/admin/"


@pytest.fixture
def run(alice: Any) -> Run:
    return services.submit(owner=alice, spec={})


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("get", "/runs/new/"),
        ("post", "/runs/new/"),
        ("post", "/runs/new/check"),
        ("get", "/runs/{pk}/clone"),
        ("get", "/runs/{pk}/cancel"),
        ("post", "/runs/{pk}/cancel"),
        ("post", "/runs/{pk}/edit"),
    ],
)
def test_viewers_are_told_that_they_may_not(client: Client, bob: Any, run: Run, method: str, path: str) -> None:
    client.force_login(bob)
    answer = getattr(client, method)(path.format(pk=run.pk))
    assert answer.status_code == 403
    assert b"Not allowed" in answer.content and b"An admin of this yard" in answer.content
    run.refresh_from_db()
    assert run.state == "queued" and Run.objects.count() == 1


def test_members_may_not_touch_the_runs_of_others(client: Client, run: Run, django_user_model: Any) -> None:
    client.force_login(make_member(django_user_model.objects.create_user("carol")))
    assert client.post(f"/runs/{run.pk}/cancel").status_code == 403
    assert client.get(f"/runs/{run.pk}/clone").status_code == 200
    run.refresh_from_db()
    assert run.state == "queued"


def test_admins_may(client: Client, run: Run, admin: Any) -> None:
    client.force_login(admin)
    assert client.post(f"/runs/{run.pk}/cancel").status_code == 302
    run.refresh_from_db()
    assert run.state == "cancelled"


def test_signing_in_leads_to_where_one_wanted_to_be(client: Client, alice: Any) -> None:
    wanted = client.get("/runs/new/")
    assert wanted["Location"] == "/accounts/login/?next=/runs/new/"
    wrong = client.post("/accounts/login/", {"username": "alice", "password": "no", "next": "/runs/new/"})
    assert wrong.status_code == 200 and b"alice" in wrong.content
    assert b"Name or password is wrong" in wrong.content
    answer = client.post("/accounts/login/", {"username": "alice", "password": "alice-secret-1", "next": "/runs/new/"})
    assert answer["Location"] == "/runs/new/"
    assert client.post("/accounts/logout/").status_code == 302
    assert client.get("/runs/").status_code == 302


def test_changing_the_password(client: Client, alice: Any) -> None:
    client.force_login(alice)
    new = "quite-another-9"
    data = {"old_password": "alice-secret-1", "new_password1": new, "new_password2": new}
    assert client.post("/accounts/password/", data, follow=True).status_code == 200
    assert Client().login(username="alice", password=new)


def test_what_a_new_password_must_be_is_inside_its_hint(client: Client, alice: Any) -> None:
    """A list ends a paragraph: in one it would stand behind it, in the page's own size, and no field would name it."""
    client.force_login(alice)
    said = client.get("/accounts/password/").content.decode()
    assert re.search(r'<div class="hint" id="help-new_password1"><ul><li>', said)


def test_there_is_no_sign_up(client: Client) -> None:
    for path in ("/accounts/signup/", "/accounts/register/"):
        assert client.get(path).status_code == 404


def test_a_token_is_shown_once_and_stored_hashed(client: Client, alice: Any) -> None:
    client.force_login(alice)
    made = client.post("/accounts/tokens/", {"name": "ci", "scope": "submit", "days": "30"})
    secret = made.context["secret"]
    assert secret and secret in made.content.decode()
    assert secret not in client.get("/accounts/tokens/").content.decode()
    token = ApiToken.objects.get()
    assert secret not in (token.hashed, token.start) and ApiToken.find(secret) == token
    client.post(f"/accounts/tokens/{token.pk}/revoke")
    assert ApiToken.find(secret) is None


@pytest.mark.parametrize(("who", "scope"), [("bob", "submit"), ("bob", "worker"), ("alice", "worker")])
def test_nobody_makes_a_token_that_may_more_than_they(
    client: Client, alice: Any, bob: Any, who: str, scope: str
) -> None:
    client.force_login({"alice": alice, "bob": bob}[who])
    assert client.post("/accounts/tokens/", {"name": "t", "scope": scope, "days": "30"}).status_code == 422
    assert not ApiToken.objects.exists()


def test_what_a_token_may_delete_is_said_where_it_is_made(client: Client, alice: Any, admin: Any) -> None:
    client.force_login(alice)
    members = client.get("/accounts/tokens/").content.decode()
    assert "Submit: read, submit, cancel and delete what is yours" in members and "what anybody has" not in members
    client.force_login(admin)
    said = client.get("/accounts/tokens/").content.decode()
    assert "a token of yours that may submit cancels and deletes what anybody has" in said
    scheme = client.get("/api/v1/openapi.json").json()["components"]["securitySchemes"]["SubmitToken"]
    assert "cancel and delete what is its owner's; an admin's, what is anybody's" in scheme["description"]


def test_nobody_revokes_the_tokens_of_others(client: Client, alice: Any, bob: Any) -> None:
    client.force_login(alice)
    client.post("/accounts/tokens/", {"name": "t", "scope": "read", "days": "7"})
    client.force_login(bob)
    assert client.post(f"/accounts/tokens/{ApiToken.objects.get().pk}/revoke").status_code == 404


def test_an_admin_revokes_the_token_of_another_person(client: Client, alice: Any, admin: Any) -> None:
    token, secret = ApiToken.make(user=alice, name="t", scope="read", expires_at=timezone.now() + timedelta(days=1))
    admin.is_superuser = False
    admin.save()
    address = f"/admin/api/apitoken/{token.pk}/delete/"
    client.force_login(alice)
    assert client.post(address, {"post": "yes"}).status_code == 302 and ApiToken.find(secret)
    client.force_login(admin)
    client.post(address, {"post": "yes"})
    assert ApiToken.find(secret) is None


def test_a_token_of_a_disabled_user_is_dead(client: Client, alice: Any) -> None:
    _, secret = ApiToken.make(user=alice, name="t", scope="read", expires_at=timezone.now() + timedelta(days=1))
    alice.is_active = False
    alice.save()
    assert ApiToken.find(secret) is None
    refused = client.get("/api/v1/runs", headers={"Authorization": f"Bearer {secret}"})
    assert refused.status_code == 401 and "account is not active" in refused.json()["error"]["message"]


@pytest.fixture
def staff(client: Client, alice: Any) -> Any:
    """A signed-in user with nothing but `staff status`, as a superuser would set it in the admin."""
    user = User.objects.create_user("frank", password="frank-secret-1", is_staff=True)
    client.force_login(user)
    return user


@pytest.mark.parametrize("verb", ["delete", "cancel"])
def test_the_role_is_read_once_a_request_however_many_runs_ask(client: Client, alice: Any, verb: str) -> None:
    client.force_login(alice)
    runs = [factory.queued(alice) for _ in range(5)]
    asked = "&".join(f"runs={run.pk}" for run in runs)
    with CaptureQueriesContext(connection) as made:
        page = client.get(f"/runs/{verb}?{asked}").content.decode()
    assert sum(f'"/runs/{run.pk}/"' in page for run in runs) == 5
    assert sum("auth_user_groups" in query["sql"] for query in made) == 1


def test_a_role_that_changes_is_seen_at_once(alice: Any) -> None:
    assert role_of(alice) == "member"
    alice.groups.clear()
    assert role_of(alice) == "viewer" and role_of(make_member(alice)) == "member"


def test_staff_make_a_member_in_the_admin(client: Client, staff: Any) -> None:
    members = Group.objects.get(name=MEMBERS)
    page = client.get("/admin/auth/user/add/").content.decode()
    assert MEMBERS in page
    data = {
        "username": "dora",
        "password1": "a-fine-secret-3",
        "password2": "a-fine-secret-3",
        "usable_password": "true",
        "groups": [members.pk],
    }
    client.post("/admin/auth/user/add/", data)
    assert role_of(User.objects.get(username="dora")) == "member"
    assert b"member" in client.get("/admin/auth/user/").content


def test_lists_of_the_admin_write_times_as_other_pages_do(client: Client, staff: Any, alice: Any) -> None:
    alice.last_login = datetime(2026, 11, 3, 18, 5, tzinfo=UTC)
    alice.save()
    page = client.get("/admin/auth/user/").content.decode()
    assert "3 Nov 2026 18:05 UTC" in page and "p.m." not in page


def test_staff_change_users_but_make_no_superusers(client: Client, staff: Any, alice: Any, admin: Any) -> None:
    page = client.get(f"/admin/auth/user/{alice.pk}/change/").content.decode()
    assert 'name="is_staff"' in page and 'name="is_superuser"' not in page
    data = {"username": "alicia", "is_active": "on", "is_superuser": "on", "date_joined_0": "2026-01-01"}
    client.post(f"/admin/auth/user/{alice.pk}/change/", {**data, "date_joined_1": "00:00:00"})
    alice.refresh_from_db()
    assert (alice.username, alice.is_superuser) == ("alicia", False)
    word = {"password1": "a-fine-secret-3", "password2": "a-fine-secret-3", "usable_password": "true"}
    assert client.post(f"/admin/auth/user/{admin.pk}/password/", word).status_code == 403
    assert client.post(f"/admin/auth/user/{admin.pk}/change/", data).status_code == 403
    admin.refresh_from_db()
    assert admin.check_password("root-secret-1")


def test_the_forms_of_a_user_ask_for_a_role_and_for_nothing_that_has_no_use_here(
    client: Client, admin: Any, alice: Any
) -> None:
    """There is no other way to sign in than a password, and no permission but the role."""
    client.force_login(admin)
    for address in ("/admin/auth/user/add/", f"/admin/auth/user/{alice.pk}/change/"):
        page = client.get(address).content.decode()
        assert "No group: viewer (reads)." in page and '<input type="checkbox" name="groups"' in page
        assert "user_permissions" not in page and 'name="usable_password"' not in page
    assert 'name="is_superuser"' in page
    assert 'name="date_joined_0"' not in page, "what happened is not changed"
    assert "/admin/auth/group/" not in client.get("/admin/").content.decode()


def test_an_account_that_has_made_something_is_not_deleted_and_the_page_says_what_to_do(
    client: Client, admin: Any, alice: Any, run: Run
) -> None:
    """It said that the admin, who may delete every run, has no permission to delete runs."""
    client.force_login(admin)
    one = client.get(f"/admin/auth/user/{alice.pk}/delete/").content.decode()
    several = {"action": "delete_selected", "_selected_action": [alice.pk]}
    for page in (one, client.post("/admin/auth/user/", several).content.decode()):
        assert "runs (1). Clear “Active” of the account instead" in page and "permission" not in page
    client.post(f"/admin/auth/user/{alice.pk}/delete/", {"post": "yes"})
    client.post("/admin/auth/user/", {**several, "post": "yes"})
    assert User.objects.filter(pk=alice.pk).exists() and Run.objects.count() == 1
    run.delete()
    client.post(f"/admin/auth/user/{alice.pk}/delete/", {"post": "yes"})
    assert not User.objects.filter(pk=alice.pk).exists()


def test_an_account_is_deleted_whose_owner_once_deleted_something(
    client: Client, admin: Any, alice: Any, run: Run
) -> None:
    """That is a log entry of the admin, which nobody may delete by itself: the account could not go, either."""
    run.state = State.SUCCEEDED
    run.save()
    removal.delete(runs=[run.pk], user=alice)
    client.force_login(admin)
    assert "log entr" in client.get(f"/admin/auth/user/{alice.pk}/delete/").content.decode().lower()
    client.post(f"/admin/auth/user/{alice.pk}/delete/", {"post": "yes"})
    assert not User.objects.filter(pk=alice.pk).exists()


@pytest.mark.parametrize("marked", ["x", "9" * 30, "\x00"])
def test_marks_in_the_admin_that_are_no_rows_are_a_bad_request(client: Client, admin: Any, marked: str) -> None:
    client.force_login(admin)
    for listed, action in (("auth/user", "make_members"), ("auth/user", "delete_selected"), ("fleet/worker", "drain")):
        assert client.post(f"/admin/{listed}/", {"action": action, "_selected_action": marked}).status_code == 400


def test_bytes_are_no_filter_of_the_admin(client: Client, admin: Any) -> None:
    client.force_login(admin)
    assert client.get("/admin/runs/deadletter/?data__exact=1").status_code == 400
    assert client.get("/admin/runs/deadletter/?rank__exact=1").status_code == 200


def test_the_admin_is_for_staff(client: Client, alice: Any) -> None:
    client.force_login(alice)
    assert client.get("/admin/auth/user/").status_code == 302


def test_error_pages_are_ours(client: Client, alice: Any) -> None:
    client.force_login(alice)
    answer = client.get("/runs/987654/cancel")
    assert answer.status_code == 404 and b"Not here" in answer.content
    strict = Client(enforce_csrf_checks=True)
    refused = strict.post("/accounts/login/", {"username": "alice"})
    assert refused.status_code == 403 and b"could not be trusted" in refused.content


def test_a_crash_shows_a_page_and_no_trace(alice: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def boom(*args: Any, **kwargs: Any) -> None:
        raise RuntimeError("secret detail")

    monkeypatch.setattr("dashboard.runs.browse.list_views.Listing.read", boom)
    client = Client(raise_request_exception=False)
    client.force_login(alice)
    answer = client.get("/runs/")
    assert answer.status_code == 500
    assert b"Something broke" in answer.content and b"secret" not in answer.content


def test_staff_administer_workers(client: Client, admin: Any, alice: Any, redis_url: str) -> None:
    def worker(name: str, age_s: float) -> Worker:
        devices = [{"index": i, "kind": "cuda", "name": "NVIDIA H100"} for i in range(2)]
        heard = timezone.now() - timedelta(seconds=age_s)
        return Worker.objects.create(name=name, devices=devices, heartbeat_at=heard, memory_total=2**34)

    fresh, gone = worker("fresh", 0), worker("gone", 3600)
    address = "/admin/fleet/worker/"
    client.force_login(alice)
    assert client.get(address).status_code == 302
    client.force_login(admin)
    page = client.get(address).content.decode()
    assert page.count("2 x NVIDIA H100") == 2 and "in service" in page and "silent" in page
    client.post(address, {"action": "drain", "_selected_action": [fresh.pk]})
    fresh.refresh_from_db()
    assert fresh.draining
    assert client.get(f"{address}{fresh.pk}/delete/").status_code == 403
    chosen = {"action": "delete_selected", "_selected_action": [fresh.pk, gone.pk], "post": "yes"}
    assert client.post(address, chosen).status_code == 403, "a live worker would come back with its next heartbeat"
    client.post(address, chosen | {"_selected_action": [gone.pk]})
    assert list(Worker.objects.all()) == [fresh]
    shown = client.get(f"{address}{fresh.pk}/change/").content.decode()
    assert "0: NVIDIA H100" in shown and str(fresh.memory_total) not in shown and "icon-no" not in shown
    index = client.get("/admin/").content.decode()
    assert "Workers" in index and "Corpora" in index and "API tokens" in index and "img/mark" in index


def test_the_state_of_many_workers_takes_as_many_queries_as_of_one(client: Client, admin: Any) -> None:
    def queries() -> int:
        with CaptureQueriesContext(connection) as asked:
            assert client.get("/admin/fleet/worker/").status_code == 200
        return len(asked)

    client.force_login(admin)
    Worker.objects.create(name="a", heartbeat_at=timezone.now())
    one = queries()
    Worker.objects.bulk_create(Worker(name=name, heartbeat_at=timezone.now()) for name in "bcde")
    assert queries() == one


def test_the_devices_of_a_worker_are_counted_by_type(client: Client, admin: Any) -> None:
    names = ["NVIDIA A100, share 1 of 2", "NVIDIA H100", "NVIDIA A100, share 2 of 2"]
    devices = [{"index": i, "kind": "cuda", "name": name} for i, name in enumerate(names)]
    Worker.objects.create(name="mixed", devices=devices)
    client.force_login(admin)
    page = client.get("/admin/fleet/worker/").content.decode()
    assert ">2 x NVIDIA A100, a share of 2, 1 x NVIDIA H100<" in page and ">none<" in page


@pytest.mark.parametrize(
    ("address", "method", "words"), [("/runs/", "post", "open it"), ("/accounts/logout/", "get", "Only a button")]
)
def test_a_wrong_method_is_said_in_words(member: Client, address: str, method: str, words: str) -> None:
    response = getattr(member, method)(address)
    assert response.status_code == 405 and response["Allow"]
    text = response.content.decode()
    assert words in text and "Go to the studies" in text


def test_a_part_of_a_page_is_refused_to_strangers_and_not_answered_with_the_sign_in(client: Client) -> None:
    part = client.post("/runs/new/check", headers={"HX-Request": "true"})
    assert part.status_code == 401 and b"<" not in part.content
    assert part["Content-Type"] == "text/plain; charset=utf-8"
    assert client.post("/runs/new/check").status_code == 302
