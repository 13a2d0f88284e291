"""Programs that compare dnnops with other libraries; README.rst describes how to run them."""
