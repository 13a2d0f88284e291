"""What layers, modules and initial values of other libraries are called here.

The keys say what to use, the values are names in PyTorch, Keras, Lasagne, and Flax.
"""

from __future__ import annotations

__all__ = ["INITIALIZERS", "LAYERS"]

_OWN = "a function of a variable that you write with pytensor.tensor"
_EXPRESSION = "an expression of pytensor.tensor"
_NO_STATE = "nnet.relu(x, slope), nnet.elu, or a function that you write with pytensor.tensor"
_ONE_ROW = "on images of one row"

#: Names of layers and modules.
LAYERS = {
    # Convolution
    "layers.TemporalConvolution": "Conv1d Conv1D Conv1DLayer LazyConv1d",
    "layers.SpatialConvolution": "Conv Conv2d Conv2D Conv2DLayer Convolution2D LazyConv2d",
    "layers.VolumetricConvolution": "Conv3d Conv3D Conv3DLayer LazyConv3d",
    "layers.SpatialConvolution with its arguments groups, dilation_w and dilation_h": (
        "DepthwiseConv2D DepthwiseConv1D DilatedConv2DLayer SpatialDilatedConvolution"
    ),
    "layers.SpatialConvolution with 1x1 filters": "NINLayer",
    "nnet.conv2d with unshared=True": (
        "ConvLocal LocallyConnected1D LocallyConnected2D LocallyConnected1DLayer "
        "LocallyConnected2DLayer LocallyConnected3DLayer"
    ),
    "nnet.separable_conv2d": "SeparableConv2D SeparableConv1D",
    "layers.SpatialFullConvolution": (
        "ConvTranspose2d LazyConvTranspose2d Conv2DTranspose ConvTranspose Deconvolution2D "
        "TransposedConv2DLayer Deconv2DLayer"
    ),
    "layers.VolumetricFullConvolution": (
        "ConvTranspose3d LazyConvTranspose3d Conv3DTranspose TransposedConv3DLayer"
    ),
    f"layers.SpatialFullConvolution {_ONE_ROW}": (
        "ConvTranspose1d LazyConvTranspose1d Conv1DTranspose"
    ),
    "nnet.images2neibs": "Unfold",
    "nnet.neibs2images": "Fold",
    # Pooling and resampling
    "layers.TemporalMaxPooling": "MaxPool1d MaxPooling1D MaxPool1D MaxPool1DLayer Pool1DLayer",
    "layers.SpatialMaxPooling": "MaxPool2d MaxPooling2D MaxPool2D MaxPool2DLayer Pool2DLayer",
    "layers.VolumetricMaxPooling": "MaxPool3d MaxPooling3D MaxPool3D MaxPool3DLayer Pool3DLayer",
    "layers.SpatialAveragePooling": "AvgPool2d AveragePooling2D AvgPool2D AveragePool2D",
    f"layers.SpatialAveragePooling {_ONE_ROW}": "AvgPool1d AveragePooling1D",
    "layers.VolumetricAveragePooling": "AvgPool3d AveragePooling3D AvgPool3D",
    "the function lambda x: x.mean(axis=(2, 3))": (
        "AdaptiveAvgPool2d GlobalAveragePooling2D GlobalAvgPool2D GlobalPoolLayer"
    ),
    "the function lambda x: x.max(axis=(2, 3))": (
        "AdaptiveMaxPool2d GlobalMaxPooling2D GlobalMaxPool2D"
    ),
    "the function lambda x: x.mean(axis=2)": "AdaptiveAvgPool1d GlobalAveragePooling1D",
    "nnet.pool_2d": "pool",
    "layers.Concat of layers.SpatialMaxPooling": "SpatialPyramidPoolingLayer",
    "nnet.bilinear_upsampling": "Upsample UpSampling2D Upscale2DLayer Resizing",
    "pytensor.tensor.repeat": "Upscale1DLayer Upscale3DLayer RepeatVector",
    "nnet.spatial_transformer": "TPSTransformerLayer",
    "layers.SpatialTransformer": "TransformerLayer",
    # Normalization
    "layers.BatchNormalization": (
        "BatchNorm1d LazyBatchNorm1d BatchNorm BatchNormLayer Normalization"
    ),
    "layers.SpatialBatchNormalization": "BatchNorm2d LazyBatchNorm2d SyncBatchNorm",
    "layers.VolumetricBatchNormalization": "BatchNorm3d LazyBatchNorm3d",
    "layers.GroupNorm with a group for each channel": (
        "InstanceNorm1d InstanceNorm2d InstanceNorm3d LazyInstanceNorm1d LazyInstanceNorm2d "
        "LazyInstanceNorm3d InstanceNorm InstanceNormLayer"
    ),
    "layers.LayerNorm": "LayerNormalization LayerNormLayer StandardizationLayer",
    "layers.GroupNorm": "GroupNormalization",
    "layers.RMSNorm": "RMSNormalization",
    "layers.SpatialCrossMapLRN": (
        "CrossMapLRN2d LocalResponseNorm LocalResponseNormalization2DLayer"
    ),
    "the expression x / x.norm(2, axis=-1, keepdims=True)": "UnitNormalization",
    # Dense layers and shapes
    "layers.Linear": "Dense DenseLayer LazyLinear DenseGeneral EinsumDense",
    "layers.Embedding": "Embed EmbeddingLayer",
    "nnet.embedding(...).sum(axis=1), or mean": "EmbeddingBag",
    "pytensor.tensor.einsum": "Einsum Bilinear",
    "layers.View(-1)": "Flatten FlattenLayer",
    "layers.View": "Reshape ReshapeLayer Unflatten",
    "a function of a variable: lambda x: x, x.transpose(...)": (
        "Identity Permute DimshuffleLayer DummyShuffleLayer"
    ),
    "a function that slices its variable: lambda x: x[:, :, 1:-1]": (
        "Cropping1D Cropping2D Cropping3D CenterCrop SliceLayer"
    ),
    "the expression a * x + b": "Rescaling ScaleLayer BiasLayer",
    # Dropout
    "layers.Dropout": "DropoutLayer",
    "layers.Dropout, which sets single elements to zero": (
        "Dropout1d Dropout2d Dropout3d SpatialDropout1D SpatialDropout2D SpatialDropout3D "
        "DropoutChannelsLayer dropout_channels spatial_dropout dropout_locations"
    ),
    # Activation
    "layers.SoftMax": "Softmax Softmax2d",
    "layers.LogSoftMax": "LogSoftmax",
    "the function nnet.swish": "SiLU Swish",
    "the function nnet.elu": "ELU",
    "the function nnet.selu": "SELU",
    "the function nnet.softplus": "Softplus",
    "the function nnet.softsign": "Softsign",
    "the function nnet.hard_sigmoid": "Hardsigmoid",
    "the function lambda x: nnet.relu(x, 0.01)": "LeakyReLU LeakyRectify",
    "layers.ClippedReLU": "ReLU6",
    "the function lambda x: pytensor.tensor.clip(x, -1, 1)": "Hardtanh",
    "the function itself, such as nnet.elu, in place of a layer": (
        "Activation NonlinearityLayer Lambda ExpressionLayer"
    ),
    _NO_STATE: (
        "CELU PReLU RReLU ThresholdedReLU ParametricRectifierLayer RandomizedRectifierLayer"
    ),
    _OWN: "Hardswish Hardshrink Softshrink Tanhshrink Threshold ScaledTanH",
    "the function lambda x: x * nnet.tanh(nnet.softplus(x))": "Mish",
    "the function lambda x: -nnet.softplus(-x)": "LogSigmoid",
    "the function lambda x: nnet.softmax(-x)": "Softmin",
    "a function: a * nnet.sigmoid(b) for the two halves": "GLU",
    "reshape and x.max(axis=2)": "FeaturePoolLayer FeatureWTALayer",
    # Recurrent networks and attention
    "layers.LSTM": "LSTMLayer",
    "layers.GRU": "GRULayer",
    "layers.RNN": "SimpleRNN RecurrentLayer RNNBase",
    "layers.LSTM or layers.GRU with bidirectional=True": "Bidirectional",
    "layers.LSTM, layers.GRU or layers.RNN": (
        "LSTMCell GRUCell RNNCell RNNCellBase SimpleRNNCell SimpleCell OptimizedLSTMCell MGUCell"
    ),
    "layers.LSTM or layers.GRU with num_layers": "StackedRNNCells",
    "pytensor.scan": "CustomRecurrentLayer ConvLSTM1D ConvLSTM2D ConvLSTM3D ConvLSTMCell Gate",
    "the argument lengths when you call a layer": (
        "Masking pack_padded_sequence pad_packed_sequence pack_sequence pad_sequence"
    ),
    "the layer itself on x.reshape((-1, features))": "TimeDistributed",
    "layers.MultiHeadAttention": (
        "MultiheadAttention MultiHeadDotProductAttention SelfAttention Attention"
    ),
    "nnet.scaled_dot_product_attention with enable_gqa": (
        "GroupedQueryAttention GroupQueryAttention"
    ),
    "nnet.scaled_dot_product_attention": "AdditiveAttention",
    "layers.Sequential of layers.TransformerEncoderLayer": "TransformerEncoder",
    "layers.TransformerEncoderLayer and layers.MultiHeadAttention in a layer of your own": (
        "Transformer TransformerDecoder TransformerDecoderLayer"
    ),
    # Containers, bases and their methods
    "layers.Layer": "Module Model MergeLayer Container Wrapper compact",
    "layers.Sequential": "Pipeline",
    "layers.Layer.parameter, the method that makes one": (
        "Parameter parameter UninitializedParameter"
    ),
    "layers.Layer.buffer, the method that makes one": "Buffer UninitializedBuffer",
    "the network itself: net(x), net.modules()": (
        "get_output get_output_shape get_all_layers InverseLayer"
    ),
    "net.parameters()": "get_all_params parameters_to_vector vector_to_parameters",
    "rewrites, which select memory formats": (
        "convert_conv2d_weight_memory_format convert_conv3d_weight_memory_format"
    ),
    "the sizes of net.parameters()": "count_params",
    "net.state_dict()": "get_all_param_values state_dict",
    "net.load_state_dict(...)": "set_all_param_values load_state_dict",
    "a list or dict as an attribute of a layer": (
        "ModuleList ModuleDict ParameterList ParameterDict"
    ),
    "a process for each GPU; layers run on one": "DataParallel DistributedDataParallel",
    "layers.Concat": "Concatenate ConcatLayer",
    "layers.Residual, or + in a layer's forward": "Add ElemwiseSumLayer",
    "an expression in a layer's forward": (
        "Average Maximum Minimum Subtract Multiply Dot ElemwiseMergeLayer"
    ),
    "a variable, such as pytensor.tensor.tensor4('x')": "Input InputLayer InputSpec",
    "dnnops.layers itself": "modules",
    "dnnops.nnet": "functional",
    "optim.clip_by_norm, net.parameters() and state_dict()": "utils parametrizations",
    "an expression of the weights in a layer of your own": (
        "weight_norm spectral_norm parametrize remove_weight_norm remove_spectral_norm "
        "SpectralNorm SpectralNormalization WeightNorm"
    ),
    # Losses
    "layers.CrossEntropyCriterion": "CrossEntropyLoss NLLLoss SparseCategoricalCrossentropy",
    "nnet.cross_entropy of a layers.Linear": "LinearCrossEntropyOptions",
    "nnet.binary_crossentropy": "BCELoss",
    "nnet.sigmoid_binary_crossentropy": "BCEWithLogitsLoss",
    "nnet.ctc": "CTCLoss CTC",
    "the expression ((y - target) ** 2).mean()": "MSELoss MeanSquaredError",
    "the expression abs(y - target).mean()": "L1Loss MeanAbsoluteError",
    _EXPRESSION: (
        "CosineSimilarity PairwiseDistance Hinge Huber KLDivergence LogCosh Poisson SquaredHinge "
        "Dice Tversky Circle MeanAbsolutePercentageError MeanSquaredLogarithmicError "
        "CategoricalHinge ActivityRegularization"
    ),
    "NumPy before the call, or a data library": (
        "TextVectorization Discretization CategoryEncoding Hashing HashedCrossing StringLookup "
        "IntegerLookup RandomCrop RandomFlip RandomTranslation RandomRotation RandomZoom "
        "RandomContrast RandomBrightness"
    ),
}

#: Names of initial values.
INITIALIZERS = {
    "layers.glorot_uniform": "xavier_uniform xavier_uniform_ GlorotUniform Glorot",
    "layers.glorot_normal": "xavier_normal xavier_normal_ GlorotNormal",
    "layers.he_uniform": "kaiming_uniform kaiming_uniform_ HeUniform He",
    "layers.he_normal": "kaiming_normal kaiming_normal_ HeNormal variance_scaling VarianceScaling",
    "layers.orthogonal": "orthogonal_ Orthogonal OrthogonalInitializer delta_orthogonal",
    "layers.normal": (
        "normal_ trunc_normal_ Normal RandomNormal TruncatedNormal truncated_normal "
        "lecun_normal LecunNormal"
    ),
    "layers.uniform": "uniform_ Uniform RandomUniform lecun_uniform LecunUniform",
    "layers.constant": "zeros_ ones_ constant_ Constant Zeros Ones zeros ones",
    "the argument gain of layers.glorot_uniform": "calculate_gain",
    "a function of a generator and a shape as initializer": (
        "dirac dirac_ eye eye_ sparse sparse_ Sparse IdentityInitializer"
    ),
    "the argument initializer, such as layers.he_normal()": "init",
    "layers.seed": "manual_seed",
}
