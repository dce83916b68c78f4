"""External side effects: idempotency, outcomes, compensation, approvals."""
