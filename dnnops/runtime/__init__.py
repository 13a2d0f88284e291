"""Finding libraries, building the runtime libraries, and the base class of the Ops on them."""
