"""Grafana dashboards as a program, and the Prometheus rules, provisioning and compose file that go with them.

`python -m nanolens.grafana.generate` writes the dashboards; nothing here runs in an engine.
"""
