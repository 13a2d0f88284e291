// All plans of one convolution on the CPU: listed, run and timed one by one.
#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>

#include "conv_blas.hpp"
#include "conv_entry.hpp"
#include "conv_parts.hpp"
#include "conv_ways.hpp"

namespace dnnops {
namespace {

using ListedPlan = dnnops_onednn_listed_plan;

// An implementation of oneDNN for parts with one number of images.
struct Prepared {
  std::shared_ptr<ConvEntry> entry;
  std::unique_ptr<PlanRun> run;
  explicit Prepared(std::shared_ptr<ConvEntry> made)
      : entry(std::move(made)), run(new PlanRun(std::shared_ptr<const Plan>(entry, &entry->plan))) {}
};

struct Item {
  ListedPlan listed;
  std::vector<Prepared> prepared;  // for oneDNN's implementations: one for each number of images, the larger one first
};

void copy_text(char *target, size_t size, const std::string &text) {
  const size_t length = std::min(text.size(), size - 1);
  std::memcpy(target, text.data(), length);
  target[length] = 0;
}

class ConvList {
 public:
  ConvList(const ConvParams &params, const dnnops_tensor *inputs, const dnnops_tensor &output)
      : params_(params), problem_(problem_of(params, inputs)), inputs_{inputs[0], inputs[1]}, output_(output) {
    const int64_t *result = conv_result_shape(problem_);
    if (output.dtype != inputs[0].dtype || output.ndim != problem_.ndim ||
        !std::equal(result, result + problem_.ndim, output.shape))
      fail(DNNOPS_VALUE_ERROR, "the output has to be %s%s", dtype_name(inputs[0].dtype),
           list_of(result, problem_.ndim).c_str());
    for (const int64_t *shape : {problem_.image, problem_.filters, problem_.top})
      if (element_count(shape, problem_.ndim) == 0) fail(DNNOPS_VALUE_ERROR, "there are no plans for empty arrays");
    params_.algorithm = ALGORITHM_AUTO;  // list all plans, whatever algorithm the Op was given
    if (conv_way(params_, problem_, inputs[0].dtype) == ConvWay::BLAS) {
      if (!is_contiguous(output)) fail(DNNOPS_VALUE_ERROR, "in float64 the output has to be contiguous");
      add(ConvWay::BLAS, BLAS_NAME).listed.scratch_bytes = blas_scratch_bytes(problem_, inputs_);
      return;
    }
    for (const OwnWay &own : own_ways()) add_own(own);
    // Plans are made for these parts, which depend on the number of threads. It may be another one when they are run.
    parts_ = std::make_unique<ConvParts>(problem_, inputs_, output_);
    std::vector<ConvPart> sizes = {parts_->first()};
    if (parts_->last().problem.image[0] != parts_->first().problem.image[0]) sizes.push_back(parts_->last());
    std::vector<std::vector<std::string>> names;
    const NoPrimitiveCache no_cache;
    for (const ConvPart &part : sizes) names.push_back(conv_implementations(part.problem, no_cache));
    for (const std::string &name : names[0]) {
      Item &item = add(ConvWay::ONEDNN, name);
      try {
        for (size_t i = 0; i < sizes.size(); ++i) {
          const ConvKey key = conv_key(sizes[i].problem, sizes[i].inputs, sizes[i].output);
          item.prepared.emplace_back(make_named_entry(key, name, names[i]));
        }
        const ConvEntry &entry = *item.prepared[0].entry;
        item.listed.scratch_bytes = (int64_t)entry.plan.scratch_bytes();
        for (int role = 0; role < 3; ++role) item.listed.reordered[role] = entry.reordered[role] || entry.packed[role];
      } catch (const Error &error) {
        copy_text(item.listed.reason, sizeof item.listed.reason, error.message);
      }
    }
  }

  int64_t size() const { return (int64_t)items_.size(); }

  // The index of the plan that the Op would select with this algorithm.
  int64_t chosen(int64_t algorithm) const {
    ConvParams params = params_;
    params.algorithm = algorithm;
    const auto way = (int64_t)conv_way(params, problem_, inputs_[0].dtype);
    return std::find_if(items_.begin(), items_.end(), [&](const Item &item) { return item.listed.way == way; }) -
           items_.begin();
  }

  const ListedPlan &listed(int64_t index) const { return items_.at(index).listed; }

  void run(int64_t index) {
    Item &item = items_.at(index);
    if (item.listed.reason[0]) fail(DNNOPS_NOT_SUPPORTED, "%s cannot be run: %s", item.listed.name, item.listed.reason);
    const auto way = (ConvWay)item.listed.way;
    if (way == ConvWay::BLAS) return conv_blas(problem_, inputs_, output_);
    if (way != ConvWay::ONEDNN) return own_way(way).compute(problem_, inputs_, output_);
    const int64_t largest = parts_->first().problem.image[0];
    parts_->run([&](const ConvPart &part) {
      Prepared &fit = item.prepared[part.problem.image[0] != largest];
      run_conv_entry(*fit.entry, *fit.run, part.problem, part.inputs, part.output);
    });
  }

 private:
  Item &add(ConvWay way, const std::string &name) {
    items_.emplace_back();
    Item &item = items_.back();
    std::memset(&item.listed, 0, sizeof item.listed);
    item.listed.way = (int64_t)way;
    copy_text(item.listed.name, sizeof item.listed.name, name);
    return item;
  }

  // Adds a plan of dnnops: why it cannot be run, or why it is not used and what memory it needs.
  void add_own(const OwnWay &own) {
    ListedPlan &listed = add(own.way, own.name).listed;
    if (const char *obstacle = own.obstacle(problem_)) return copy_text(listed.reason, sizeof listed.reason, obstacle);
    listed.scratch_bytes = own.scratch_bytes(problem_, inputs_, output_);
    if (const char *drawback = own.drawback(problem_)) copy_text(listed.remark, sizeof listed.remark, drawback);
  }

  ConvParams params_;
  ConvProblem problem_;
  dnnops_tensor inputs_[2], output_;
  std::unique_ptr<const ConvParts> parts_;  // null in float64
  std::vector<Item> items_;  // for each way, the plan that the Op would select comes first
};

double milliseconds(std::chrono::steady_clock::duration duration) {
  return std::chrono::duration<double, std::milli>(duration).count();
}

// The median time of single calls after two warm-up calls. Slow plans get fewer calls, for about `budget`
// milliseconds in total, but always at least one.
double time_call(ConvList &list, int64_t index, double budget) {
  constexpr size_t FEWEST = 7, MOST = 200;
  constexpr double ENOUGH = 200;
  const auto call = [&] {
    const auto start = std::chrono::steady_clock::now();
    list.run(index);
    return milliseconds(std::chrono::steady_clock::now() - start);
  };
  double spent = call();
  if (spent < budget / 2) spent += call();
  std::vector<double> times;
  while (times.size() < MOST && (times.empty() || spent + times.back() < (times.size() < FEWEST ? budget : ENOUGH))) {
    times.push_back(call());
    spent += times.back();
  }
  std::sort(times.begin(), times.end());
  const size_t half = times.size() / 2;
  return times.size() % 2 ? times[half] : (times[half - 1] + times[half]) / 2;
}

template <class Body>
int guarded_list(Body &&body) {
  return guarded("plans of a convolution", nullptr, 0, body);
}

}  // namespace
}  // namespace dnnops

using dnnops::guarded_list;

struct dnnops_onednn_conv_list : dnnops::ConvList {
  using ConvList::ConvList;
};

DNNOPS_EXPORT int dnnops_onednn_conv_list_open(const int64_t *words, const dnnops_tensor *inputs,
                                               const dnnops_tensor *outputs, dnnops_onednn_conv_list **list) {
  const auto &params = dnnops::params_of<dnnops::ConvParams>(words);
  return dnnops::guarded("plans of a convolution", inputs, 2,
                         [&] { *list = new dnnops_onednn_conv_list(params, inputs, outputs[0]); });
}

DNNOPS_EXPORT int dnnops_onednn_conv_list_close(dnnops_onednn_conv_list *list) {
  delete list;
  return DNNOPS_OK;
}

DNNOPS_EXPORT int dnnops_onednn_conv_list_size(const dnnops_onednn_conv_list *list, int64_t *size) {
  return guarded_list([&] { *size = list->size(); });
}

DNNOPS_EXPORT int dnnops_onednn_conv_list_chosen(const dnnops_onednn_conv_list *list, int64_t algorithm,
                                                 int64_t *index) {
  return guarded_list([&] { *index = list->chosen(algorithm); });
}

DNNOPS_EXPORT int dnnops_onednn_conv_list_plan(const dnnops_onednn_conv_list *list, int64_t index,
                                               dnnops_onednn_listed_plan *plan) {
  return guarded_list([&] { *plan = list->listed(index); });
}

DNNOPS_EXPORT int dnnops_onednn_conv_list_run(dnnops_onednn_conv_list *list, int64_t index, int64_t repeats) {
  return guarded_list([&] {
    for (int64_t i = 0; i < repeats; ++i) list->run(index);
  });
}

DNNOPS_EXPORT int dnnops_onednn_conv_list_time(dnnops_onednn_conv_list *list, int64_t index, double budget,
                                               double *time) {
  return guarded_list([&] { *time = dnnops::time_call(*list, index, budget); });
}
