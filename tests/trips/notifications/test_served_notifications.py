"""Notifications of a server, as its settings have them, and their metrics."""

from __future__ import annotations

import pathlib

import httpx2

from ramet import Agent, ScriptedModel
from ramet.services.config.build import server_of
from ramet.services.config.load import load
from tests.support.prometheus import scrape
from tests.support.serving import short_folder
from tests.support.waiting import eventually
from tests.support.webhook_receiver import failing, receiver


async def test_a_server_notifies_the_targets_of_its_settings_and_counts_the_outcomes() -> None:
    """The endpoint refuses twice; then one notification is delivered, and none waits."""
    with short_folder() as folder:
        file = pathlib.Path(folder) / "ramet.yaml"
        file.write_text(
            f"backend: local\nworking_dir: {folder}\nmetrics: public\n"
            "notify:\n  ops:\n    webhook: env:HOOK_URL\n    allow_private: [127.0.0.1]\n    kinds: [ended]\n"
        )
        async with receiver() as endpoint:
            endpoint.answer = failing(2)
            async with server_of(load(file, {}, {}), {"HOOK_URL": endpoint.url}) as server:
                handle = await server.runtime.spawn(Agent(name="a", model=ScriptedModel(["done"])), "go")
                await handle.result()
                notifier = server.runtime.notifier
                assert notifier is not None
                await eventually(lambda: endpoint.accepted and notifier.is_done)
                transport = httpx2.AsyncHTTPTransport(uds=server.listen_address)
                async with httpx2.AsyncClient(transport=transport, base_url="http://ramet", timeout=180) as http:
                    metrics = scrape((await http.get("/metrics")).text)

    assert [each.body["run"] for each in endpoint.accepted] == [handle.id]
    assert metrics.value("ramet_notifications_total", target="ops", outcome="delivered") == 1
    assert metrics.value("ramet_notifications_total", target="ops", outcome="failed") == 2
    assert metrics.value("ramet_notifications_waiting", target="ops") == 0
