"""Find libraries, build and load the runtime libraries, and define the Ops that call them."""
