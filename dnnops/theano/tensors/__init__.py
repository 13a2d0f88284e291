"""Parts of ``theano.tensor`` that PyTensor no longer has, or has changed, by module."""
