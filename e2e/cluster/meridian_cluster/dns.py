"""CoreDNS on the node's address: names of Services and pods, for pods; nothing is forwarded."""

from __future__ import annotations

from meridian_cluster import binaries, layout, processes, waiting


def up() -> None:
    """Start CoreDNS and wait until it answers on its TCP port. Idempotent."""
    corefile = layout.STATE / "Corefile"
    corefile.write_text(
        f"""{layout.CLUSTER_DOMAIN}:53 in-addr.arpa:53 {{
  bind {layout.NODE_ADDRESS}
  errors
  cache 5
  kubernetes {layout.CLUSTER_DOMAIN} in-addr.arpa {{
    kubeconfig {layout.PKI}/dns.kubeconfig
    pods insecure
  }}
}}
"""
    )
    processes.start("coredns", [binaries.path("coredns"), "-conf", corefile])
    waiting.until(
        "CoreDNS",
        lambda: waiting.port_open(layout.NODE_ADDRESS, 53),
        seconds=30,
        why_not=lambda: processes.log_tail("coredns"),
    )
