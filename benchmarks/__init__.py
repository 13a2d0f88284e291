"""Programs that measure dnnops beside other libraries; README.rst says how to run them."""
