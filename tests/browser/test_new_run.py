"""The form of a run: every mistake is shown at its field while typing, and no input is ever lost."""

from __future__ import annotations

import json
import math
import re
import shutil
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from playwright.sync_api import Page, expect

from parallel_core.checkpoint import llama_weights, safetensors
from parallel_core.data import token_file
from parallel_core.model_spec import ModelSpec
from tests.browser.observed_page import RUN_MS, Troubles
from tests.yard_process import YardProcess

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]

WRONG = [
    ("parallel__tp", "3", "Tensor parallel = 3 does not divide Attention heads = 4; try 1, 2, 4."),
    ("parallel__pp", "11", "Pipeline stages = 11 is more than the model's 10 cuttable layers; use at most 10."),
    ("parallel__micro_batches", "3", "3 micro-batches do not divide the 16 samples that a replica has of"),
    ("parallel__micro_batches", "4097", "Must be at most 4 096; got 4097."),
    ("parallel__dp", "4", "4 replicas need 4 CPU devices; the fleet has 2."),
    ("model__layers", "-1", "Must be at least 1; got -1."),
    ("model__hidden", "", "A whole number is needed; got nothing."),
    ("train__lr", "NaN", "A number is needed; got 'NaN'."),
    ("train__steps", "10000001", "Must be at most 10 000 000; got 10000001."),
    ("train__global_batch", "3.5", "A whole number is needed; got '3.5'."),
    ("name", "x" * 121, "at most 120 characters; this one has 121"),
]
BLIND = "[aria-invalid=true]"
MIB = 2**20
RUN = re.compile(r"/runs/\d+/$")
"""Address of a run's page."""


def field(page: Page, name: str) -> Any:
    return page.locator(f"#f-{name}")


def fill(page: Page, values: Mapping[str, str]) -> None:
    for name, value in values.items():
        field(page, name).fill(value)


def said(page: Page, name: str) -> Any:
    return page.locator(f"#error-{name}")


@contextmanager
def nothing_queued(client: httpx.Client) -> Iterator[None]:
    before = client.get("/api/v1/runs").json()["meta"]["count"]
    yield
    assert client.get("/api/v1/runs").json()["meta"]["count"] == before


GAP = "one => one.getBoundingClientRect().top - one.previousElementSibling.getBoundingClientRect().bottom"
"""Pixels between an element and the one above it."""


def test_what_is_wrong_is_said_at_its_field_while_typing(page: Page, client: httpx.Client) -> None:
    page.goto("/runs/new/?preset=tiny")
    panel = page.get_by_role("complementary", name="Feasibility")
    expect(panel).to_contain_text("Yes.")
    with nothing_queued(client):
        for name, value, message in WRONG:
            good = field(page, name).input_value()
            field(page, name).fill(value)
            expect(said(page, name)).to_contain_text(message)
            expect(field(page, name)).to_have_attribute("aria-invalid", "true")
            expect(page.locator(".field.has-error")).to_have_count(1)
            if name != "name":
                expect(panel).to_contain_text("Not like this.")
                assert page.locator("#panel-verdict").evaluate(GAP) == 8
            field(page, name).fill(good)
            expect(said(page, name)).to_be_empty()
            expect(page.locator(BLIND)).to_have_count(0)
        expect(panel).to_contain_text("Yes.")


def test_a_model_beyond_memory_says_so_and_asks_before_it_is_queued(page: Page) -> None:
    page.goto("/runs/new/")
    field(page, "model__layers").fill("100")
    field(page, "model__hidden").fill("1024")
    panel = page.get_by_role("complementary", name="Feasibility")
    expect(panel).to_contain_text("Does not fit.")
    expect(panel.get_by_role("listitem")).to_contain_text("over")
    expect(panel.get_by_label("Queue it although it is predicted not to fit")).not_to_be_checked()


def test_a_refused_form_keeps_everything_and_the_corrected_one_runs(
    page: Page, yard: YardProcess, client: httpx.Client, troubles: Troubles
) -> None:
    troubles.expected += ["status of 422"]
    page.goto("/runs/new/")
    page.get_by_role("link", name="Tiny GPT, PP 2 (1F1B)").click()
    page.wait_for_url("**/runs/new/?preset=pp2")
    typed = {"name": "From the form", "tags": "one, two", "model__layers": "2", "model__hidden": "32"}
    typed |= {"model__seq": "16", "parallel__micro_batches": "3", "train__steps": "6", "train__lr": "-1"}
    page.locator("summary", has_text="Optimizer and tracing").click()
    fill(page, {**typed, "train__beta1": "2"})
    field(page, "parallel__recompute").select_option("full")
    expect(said(page, "train__beta1")).to_contain_text("less than 1")
    with nothing_queued(client):
        page.get_by_role("button", name="Queue run").click()
        expect(page.locator("#form-errors")).to_be_focused()
    for name, value in {**typed, "train__beta1": "2", "parallel__pp": "2", "parallel__recompute": "full"}.items():
        expect(field(page, name)).to_have_value(value)
    expect(said(page, "train__lr")).to_be_visible()
    expect(said(page, "train__beta1")).to_be_visible()
    fill(page, {"parallel__micro_batches": "4", "train__lr": "0.001", "train__beta1": "0.9"})
    expect(page.get_by_text("Yes.")).to_be_visible()
    page.get_by_role("button", name="Queue run").click()
    page.wait_for_url(RUN)
    expect(page.get_by_role("heading", name="From the form", level=1)).to_be_visible()
    expect(page.get_by_text("“From the form” was submitted.")).to_be_visible()
    expect(page.locator("#head")).to_have_attribute("data-state", "succeeded", timeout=RUN_MS)
    spec = yard.run_of(client, int(page.url.rstrip("/").rsplit("/", 1)[1]))["spec"]
    assert (spec["parallel"]["pp"], spec["parallel"]["recompute"], spec["train"]["lr"]) == (2, "full", 0.001)


def test_a_corpus_that_is_empty_or_too_large_is_refused_at_its_field(
    page: Page, client: httpx.Client, tmp_path: Path
) -> None:
    empty, huge = tmp_path / "empty.txt", tmp_path / "huge.txt"
    empty.touch()
    with huge.open("wb") as file:
        file.truncate(200 * MIB + 1)  # a sparse file: it takes no disk space
    page.goto("/runs/new/")
    with nothing_queued(client):
        for path, message in ((empty, "This file is empty"), (huge, "at most 200 MiB; this file has 1 B more.")):
            field(page, "upload").set_input_files(path)
            expect(said(page, "upload")).to_contain_text(message)
            address = page.url
            page.get_by_role("button", name="Queue run").click()
            expect(field(page, "upload")).to_be_focused()
            expect(page).to_have_url(address)


def test_without_scripts_an_upload_is_judged_by_the_server(
    window: Any, session: Any, client: httpx.Client, tmp_path: Path, troubles: Troubles
) -> None:
    troubles.expected += ["status of 422", "status of 413"]
    empty, huge = tmp_path / "empty.txt", tmp_path / "huge.txt"
    empty.touch()
    with huge.open("wb") as file:
        file.truncate(202 * MIB)
    page = window(storage_state=session, java_script_enabled=False)
    with nothing_queued(client):
        page.goto("/runs/new/")
        field(page, "name").fill("kept")
        field(page, "upload").set_input_files(empty)
        page.get_by_role("button", name="Queue run").click()
        expect(said(page, "upload")).to_contain_text("This file is empty")
        expect(field(page, "name")).to_have_value("kept")
        field(page, "upload").set_input_files(huge)
        page.get_by_role("button", name="Queue run").click()
        expect(page.get_by_role("heading", name="Too large")).to_be_visible()
        expect(page.get_by_role("link", name="Back to the form")).to_be_visible()


def test_what_was_typed_beside_a_file_that_is_too_large_is_back(page: Page, tmp_path: Path, troubles: Troubles) -> None:
    troubles.expected += ["status of 413"]
    huge = tmp_path / "graph.txt"
    with huge.open("wb") as file:
        file.truncate(9 * MIB)
    page.goto("/partition/graph/")
    form = page.get_by_role("form", name="Graph")
    form.locator("[name=workers]").fill("24")
    form.locator("[name=file]").set_input_files(huge)
    form.get_by_role("button", name="Partition").click()
    expect(page.get_by_role("heading", name="Too large")).to_be_visible()
    expect(page.get_by_role("status")).to_contain_text("This was not taken when you sent it.")
    page.get_by_role("link", name="Back to the form").click()
    expect(page.get_by_role("status").filter(has_text="What you had typed is back")).to_be_visible()
    expect(form.locator("[name=workers]")).to_have_value("24")


@pytest.mark.full
def test_an_uploaded_text_is_what_the_run_trains_on(
    page: Page, yard: YardProcess, client: httpx.Client, tmp_path: Path
) -> None:
    text = tmp_path / "hare.txt"
    text.write_text("the hare and the tortoise " * 400)
    page.goto("/runs/new/")
    field(page, "upload").set_input_files(text)
    fill(page, {"name": "Hare", "model__layers": "1", "model__seq": "16", "train__steps": "6"})
    page.get_by_role("button", name="Queue run").click()
    page.wait_for_url(RUN)
    expect(page.locator("#head")).to_have_attribute("data-state", "succeeded", timeout=RUN_MS)
    spec = yard.run_of(client, int(page.url.rstrip("/").rsplit("/", 1)[1]))["spec"]
    page.goto("/runs/new/")
    chosen = field(page, "train__corpus").locator("option", has_text="hare.txt")
    expect(chosen).to_have_attribute("value", spec["train"]["corpus"])


def test_clicks_in_quick_succession_queue_one_run(page: Page, client: httpx.Client) -> None:
    """The button is still there while the response is on its way, and an impatient user clicks it again."""
    page.goto("/runs/new/?preset=tiny")
    field(page, "name").fill("Clicked twice")
    field(page, "train__steps").fill("12")
    button = page.get_by_role("button", name="Queue run")
    button.scroll_into_view_if_needed()
    box = button.bounding_box()
    assert box is not None
    for _ in range(4):
        page.mouse.click(box["x"] + 8, box["y"] + 8)
        page.wait_for_timeout(60)
    page.wait_for_url(RUN)
    page.goto("/runs/?q=Clicked+twice")
    expect(page.get_by_role("row").filter(has_text="Clicked twice")).to_have_count(1)


def test_a_kind_of_model_is_offered_what_it_can_be_trained_on(page: Page) -> None:
    page.goto("/runs/new/")
    corpus, upload = field(page, "train__corpus"), page.locator("#field-upload")
    expect(corpus).to_have_value("stdlib")
    expect(upload).to_be_visible()
    field(page, "model__kind").select_option("vgg16")
    expect(corpus).to_have_value("digits")
    expect(corpus.locator("option:enabled")).to_have_count(1)
    expect(upload).to_be_hidden()
    field(page, "model__kind").select_option("gpt")
    expect(corpus).to_have_value("stdlib")


def test_the_preset_is_marked_while_the_spec_is_as_it_made_it(page: Page) -> None:
    page.goto("/runs/new/?preset=tiny")
    current = page.locator("nav.presets [aria-current=true]")
    changed = page.get_by_text("What stands below is not this preset any more.")
    expect(current).to_have_count(1)
    expect(changed).to_be_hidden()
    first = field(page, "model__layers").input_value()
    fill(page, {"name": "my own", "model__layers": "6"})
    expect(current).to_have_count(0)
    expect(changed).to_be_visible()
    fill(page, {"model__layers": first})
    expect(current).to_have_count(1)
    expect(changed).to_be_hidden()


@pytest.mark.full
def test_weights_chosen_in_the_form_fill_in_their_model(page: Page, yard: YardProcess) -> None:
    """Fields that apply only to such a model are shown at once, and the form is checked with it."""
    folder = yard.home / "workers" / socket.gethostname() / "corpora" / "small"
    _put_weights(folder)
    try:
        page.goto("/runs/new/?preset=tiny")
        while page.get_by_label("Begin from").locator("option[value=small]").count() == 0:  # the worker lists them soon
            page.wait_for_timeout(500)
            page.reload()
        page.get_by_label("Begin from").select_option("small")
        for name, value in {"layers": "3", "hidden": "64", "kv_heads": "2", "ffn": "96", "norm": "rmsnorm"}.items():
            expect(field(page, f"model__{name}")).to_have_value(value)
        expect(field(page, "model__bias")).not_to_be_checked()
        panel = page.get_by_role("complementary", name="Feasibility")
        expect(panel).to_contain_text("Yes.")
        field(page, "model__layers").fill("4")
        expect(said(page, "model__layers")).to_contain_text(
            "The weights small have Layers = 3; this run has Layers = 4."
        )
        expect(panel).to_contain_text("Not like this.")
    finally:
        shutil.rmtree(folder)


@pytest.mark.full
def test_weights_with_tokens_of_their_own_choose_a_token_file(page: Page, yard: YardProcess) -> None:
    folder = yard.home / "workers" / socket.gethostname() / "corpora"
    _put_weights(folder / "worded", vocab=300)
    (np.arange(3000, dtype="<u2") % 300).tofile(folder / "raw")
    token_file.pack(folder / "raw", 2, 300, "worded", folder)
    try:
        page.goto("/runs/new/?preset=tiny")
        offered = page.get_by_label("Begin from").locator("option[value=worded]")
        file = field(page, "train__corpus").locator("option[value='tokens:worded']")
        while not (offered.count() and file.count()):  # the worker lists them soon
            page.wait_for_timeout(500)
            page.reload()
        page.get_by_label("Begin from").select_option("worded")
        expect(field(page, "model__vocab")).to_have_value("300")
        expect(field(page, "train__corpus")).to_have_value("tokens:worded")
        panel = page.get_by_role("complementary", name="Feasibility")
        expect(panel).to_contain_text("Yes.")
        field(page, "train__corpus").select_option("stdlib")
        expect(panel).to_contain_text("Choose as corpus a token file:")
    finally:
        shutil.rmtree(folder / "worded")
        for name in ("raw", "worded.tokens"):
            (folder / name).unlink()


def _put_weights(folder: Path, vocab: int = 256) -> None:
    """Writes a small Llama whose weights are all 0."""
    config = {"model_type": "llama", "hidden_act": "silu", "rms_norm_eps": 1e-5, "vocab_size": vocab}
    config |= {"num_hidden_layers": 3, "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2}
    config |= {"intermediate_size": 96, "tie_word_embeddings": False}
    shapes = llama_weights.expected(ModelSpec.model_validate(llama_weights.model_of(config, 64)))
    about = {name: ("BF16", shape) for name, shape in shapes.items()}
    folder.mkdir(parents=True)
    safetensors.write(folder / safetensors.SINGLE, about, (bytes(2 * math.prod(shape)) for shape in shapes.values()))
    (folder / llama_weights.CONFIG).write_text(json.dumps(config))
