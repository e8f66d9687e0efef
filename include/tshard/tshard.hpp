/* tshard in C++ (11 or newer): owning handles, and failed calls as exceptions. Everything else is as in tshard.h.
 *
 *     auto world = tsh::create<tsh::world>(tsh_world_init, nullptr);
 *     auto layer = tsh::create<tsh::linear>(tsh_linear_create, tsh_world_group(world.get()), &config);
 *
 * A handle is a std::unique_ptr. Handles that are declared after the world's, in the same scope or an inner one, are
 * destroyed before it, as they must be. */
#ifndef TSHARD_TSHARD_HPP
#define TSHARD_TSHARD_HPP

#include "tshard/tshard.h"

#include <memory>
#include <stdexcept>

namespace tsh {

/* A failed call; what() is its message. */
class error : public std::runtime_error {
  public:
    error(tsh_status failed, const char *message) : std::runtime_error(message), status(failed) {}
    tsh_status status;
};

/* Throws when a call has failed. */
inline void check(tsh_status status) {
    if (status != TSH_OK) throw error(status, tsh_error_message());
}
/* The result of a function that records on a tape; throws when it is NULL. */
inline tsh_tensor *check(const tsh_tape *tape, tsh_tensor *result) {
    if (!result) throw error(tsh_tape_status(tape), tsh_tape_message(tape));
    return result;
}

template <class T, void (*Destroy)(T *)> struct destroyer {
    void operator()(T *handle) const noexcept {
        Destroy(handle);
    }
};
template <class T, void (*Destroy)(T *)> using handle = std::unique_ptr<T, destroyer<T, Destroy>>;

using adapter_config = handle<tsh_lora_config, tsh_adapter_config_destroy>;
using block = handle<tsh_block, tsh_block_destroy>;
using data_parallel = handle<tsh_data_parallel, tsh_data_parallel_destroy>;
using embedding = handle<tsh_embedding, tsh_embedding_destroy>;
using event = handle<tsh_event, tsh_event_destroy>;
using experts = handle<tsh_experts, tsh_experts_destroy>;
using graph = handle<tsh_graph, tsh_graph_destroy>;
using group = handle<tsh_group, tsh_group_destroy>;
using kv_cache = handle<tsh_kv_cache, tsh_kv_cache_destroy>;
using linear = handle<tsh_linear, tsh_linear_destroy>;
using mesh = handle<tsh_mesh, tsh_mesh_destroy>;
using mlp = handle<tsh_mlp, tsh_mlp_destroy>;
using norm = handle<tsh_norm, tsh_norm_destroy>;
using optimizer = handle<tsh_optimizer, tsh_optimizer_destroy>;
using parameters = handle<tsh_parameters, tsh_parameters_destroy>;
using protection = handle<tsh_protection, tsh_protection_destroy>;
using self_attention = handle<tsh_self_attention, tsh_self_attention_destroy>;
using tape = handle<tsh_tape, tsh_tape_destroy>;
using tensor = handle<tsh_tensor, tsh_tensor_release>;
using text_stream = handle<tsh_text_stream, tsh_text_stream_destroy>;
using thread_rendezvous = handle<tsh_thread_rendezvous, tsh_thread_rendezvous_destroy>;
using tokenizer = handle<tsh_tokenizer, tsh_tokenizer_destroy>;
using work = handle<tsh_work, tsh_work_release>;
using world = handle<tsh_world, tsh_world_destroy>;

/* Calls `create` and returns the handle that it writes to its last argument, which the caller leaves out; throws when
 * `create` fails. */
template <class Handle, class Create, class... Arguments> Handle create(Create *create, Arguments... arguments) {
    typename Handle::pointer out = nullptr;
    check(create(arguments..., &out));
    return Handle(out);
}

} // namespace tsh

#endif
