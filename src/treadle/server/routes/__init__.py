"""The routes of `/api/v1`, one module a subject."""
