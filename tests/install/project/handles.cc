/* Two layers learn, with handles that destroy themselves, and failures are exceptions. */
#include <cstdio>
#include <cstring>
#include <tshard/tshard.hpp>
#include <vector>

static double train(tsh_group *group, tsh_tape *tape, tsh_linear *up, tsh_linear *down, tsh_optimizer *optimizer) {
    tsh_tensor_config shape{};
    shape.ndim = 2;
    shape.shape[0] = 8;
    shape.shape[1] = 4;
    auto x = tsh::create<tsh::tensor>(tsh_tensor_create_full, tsh_group_mesh(group), &shape, 0.5);
    auto target = tsh::create<tsh::tensor>(tsh_tensor_create_full, tsh_group_mesh(group), &shape, 1.0);
    double last = 0;
    for (int step = 0; step < 50; step++) {
        tsh_tensor *h = tsh_linear_forward(tape, up, x.get()), *y = tsh_linear_forward(tape, down, h);
        tsh_tensor *loss = tsh::check(tape, tsh_mse_loss(tape, y, target.get(), TSH_REDUCTION_MEAN));
        tsh::check(tsh_backward(tape, loss));
        last = tsh_tensor_item(loss);
        tsh::check(tsh_optimizer_step(optimizer));
        tsh_optimizer_zero_grad(optimizer);
        tsh::check(tsh_tape_reset(tape));
    }
    return last;
}

int main() try {
    auto world = tsh::create<tsh::world>(tsh_world_init, nullptr);
    auto tape = tsh::create<tsh::tape>(tsh_tape_create, world.get());
    tsh_group *group = tsh_world_group(world.get());
    tsh_linear_config wide{}, narrow{};
    wide.in_features = narrow.out_features = 4;
    wide.out_features = narrow.in_features = 16;
    wide.shard = TSH_COLUMN;
    narrow.shard = TSH_ROW;
    std::vector<tsh::linear> layers;
    layers.push_back(tsh::create<tsh::linear>(tsh_linear_create, group, &wide));
    layers.push_back(tsh::create<tsh::linear>(tsh_linear_create, group, &narrow));
    auto list = tsh::create<tsh::parameters>(tsh_parameters_create, world.get());
    for (auto &layer : layers)
        tsh::check(tsh_linear_register(layer.get(), list.get(), layer == layers[0] ? "up" : "down"));
    tsh_adamw_config adamw{};
    adamw.lr = 0.05;
    auto optimizer = tsh::create<tsh::optimizer>(tsh_adamw_create, list.get(), &adamw);
    double loss = train(group, tape.get(), layers[0].get(), layers[1].get(), optimizer.get());
    if (!(loss < 1e-2)) return std::printf("the loss is still %g\n", loss), 1;
    try {
        tsh::check(tape.get(), tsh_linear_forward(tape.get(), layers[1].get(), nullptr));
        return std::puts("NULL was taken"), 1;
    } catch (const tsh::error &failure) {
        if (failure.status == TSH_OK || !std::strstr(failure.what(), "linear_forward")) throw;
    }
    tsh_tape_reset(tape.get());
    std::printf("tshard %s: %d ranks, a layer: yes\n", tsh_version(), tsh_world_size(world.get()));
    return 0;
} catch (const tsh::error &failure) {
    std::printf("%s: %s\n", tsh_status_name(failure.status), failure.what());
    return 1;
}
