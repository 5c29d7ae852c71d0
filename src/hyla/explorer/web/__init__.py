"""How the page is served: who may ask, what goes over the wire, how many at once."""
