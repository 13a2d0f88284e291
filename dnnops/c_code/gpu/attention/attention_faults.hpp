// Known faults of cuDNN's attention engines, and how they are avoided.
#ifndef DNNOPS_CUDNN_ATTENTION_FAULTS_HPP
#define DNNOPS_CUDNN_ATTENTION_FAULTS_HPP

#include <string>

#include "attention_graph.hpp"

namespace dnnops {

// Changes a case so that engines compute it correctly, with the version of cuDNN that is loaded. Returns the names of
// the faults that concern it, separated by commas.
std::string avoid_faults(AttentionCase &attention);

}  // namespace dnnops
#endif
