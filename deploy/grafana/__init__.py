"""Grafana's dashboards as code: ``python -m deploy.grafana`` writes their JSON."""
