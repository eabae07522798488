"""Whole networks, as people use them, are equal in every framework; `python -m tests.zoo` writes their table."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.zoo import NETWORKS
from tests.zoo.__main__ import isolated
from tests.zoo.network import Network

PAGE = Path(__file__).parents[1] / "docs/networks.md"
QUICK = [network for network in NETWORKS.values() if network.quick]
OTHERS = [network for network in NETWORKS.values() if not network.quick]


def check(network: Network) -> None:
    if missing := network.missing():
        pytest.skip(f"the package {missing} is not installed; `make setup` installs it")
    assert isolated(network.name).errors == {}


@pytest.mark.parametrize("network", QUICK, ids=lambda n: n.name)
def test_a_network_is_equal_everywhere(network):
    check(network)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("network", OTHERS, ids=lambda n: n.name)
def test_every_network_is_equal_everywhere(network):
    check(network)


def test_the_page_lists_all_networks_and_all_are_equal():
    text = PAGE.read_text()
    listed = [n for n in re.findall(r"^\| ([\w-]+) \|", text, re.MULTILINE) if n != "network"]
    assert len(NETWORKS) >= 60
    assert listed == list(NETWORKS)
    assert f"{len(NETWORKS)} networks, {len(NETWORKS)} of them equal everywhere." in text
