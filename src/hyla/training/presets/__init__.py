"""Settings that training begins with, as YAML; tasks have their own beside them."""
