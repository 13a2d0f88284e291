"""Operations of cuDNN graphs: their parameters, shapes, descriptors and meaning."""
