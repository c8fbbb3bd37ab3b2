"""What is made around the services for containers: dashboards, rules, and the smoke test of the whole stack."""
