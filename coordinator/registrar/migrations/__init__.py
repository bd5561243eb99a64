"""Migrations of the registrar's store; `coordinator.registrar.store.Store.open` applies them."""
