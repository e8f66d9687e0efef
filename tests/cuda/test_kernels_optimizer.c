/* The GPU's optimizers against the CPU's. */
#include "kernel_pair.h"

TestSuite(cuda_optimizer, .timeout = 600);

#define STEPS 3

typedef struct parameter {
    pair p, grad, state[2];
} parameter;

/* states: given to the kernel; NaNs where a step must not read them. */
static parameter parameter_make(tsh_dtype dtype, int64_t n, int skew, double state) {
    parameter u = {.p = pair_random(dtype, n, skew, -1, 1), .grad = pair_make(dtype, n, skew)};
    for (int s = 0; s < 2; s++) {
        u.state[s] = pair_make(tshi_dtype_sum(dtype), n, skew);
        for (int64_t i = 0; i < n; i++) set(&u.state[s].cpu, i, state);
        pair_round(&u.state[s]);
    }
    return u;
}

static void parameter_free(parameter *u) {
    pair_free(&u->p);
    pair_free(&u->grad);
    pair_free(&u->state[0]);
    pair_free(&u->state[1]);
}

static void new_gradients(int count, parameter *u) {
    for (int i = 0; i < count; i++) {
        buffer_fill_random(&u[i].grad.cpu, 0.1, 1);
        pair_round(&u[i].grad);
    }
}

static void list_updates(int count, const parameter *u, int states, tshi_update *gpu_list, tshi_update *cpu_list) {
    for (int i = 0; i < count; i++) {
        gpu_list[i] = (tshi_update){.n = u[i].p.n, .grad = u[i].grad.gpu, .p = u[i].p.gpu};
        cpu_list[i] = (tshi_update){.n = u[i].p.n, .grad = u[i].grad.cpu.data, .p = u[i].p.cpu.data};
        for (int s = 0; s < states; s++) {
            gpu_list[i].state[s] = u[i].state[s].gpu;
            cpu_list[i].state[s] = u[i].state[s].cpu.data;
        }
    }
}

/* Then the GPU continues from the CPU's numbers, so that roundings of a half do not add up. */
static void compare(int count, parameter *u, int states) {
    for (int i = 0; i < count; i++) {
        expect_pair(&u[i].p, "p", 4, 8);
        pair_round(&u[i].p);
        for (int s = 0; s < states; s++) {
            expect_pair(&u[i].state[s], s ? "v" : "m", 4, 8);
            pair_round(&u[i].state[s]);
        }
    }
}

#define MOST 200

static void run_sgd(int count, parameter *u, tshi_sgd s) {
    static tshi_update gpu_list[MOST], cpu_list[MOST];
    int states = s.momentum != 0.0;
    list_updates(count, u, states, gpu_list, cpu_list);
    for (int step = 0; step < STEPS; step++) {
        s.first = step == 0;
        new_gradients(count, u);
        tshi_cuda_optimizer[u[0].p.dtype].sgd(gpu(), &s, count, gpu_list);
        kernels()->optimizer[u[0].p.cpu.dtype].sgd(kernel_device(), &s, count, cpu_list);
        compare(count, u, states);
    }
}

static void run_adamw(int count, parameter *u) {
    static tshi_update gpu_list[MOST], cpu_list[MOST];
    tshi_adamw a = {.lr = 0.01, .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-8, .weight_decay = 0.1};
    list_updates(count, u, 2, gpu_list, cpu_list);
    for (a.step = 1; a.step <= STEPS; a.step++) {
        new_gradients(count, u);
        tshi_cuda_optimizer[u[0].p.dtype].adamw(gpu(), &a, count, gpu_list);
        kernels()->optimizer[u[0].p.cpu.dtype].adamw(kernel_device(), &a, count, cpu_list);
        compare(count, u, 2);
    }
}

static void check_sgd(tsh_dtype dtype, int64_t n, int skew, tshi_sgd s) {
    parameter u = parameter_make(dtype, n, skew, NAN);
    run_sgd(1, &u, s);
    parameter_free(&u);
}

Test(cuda_optimizer, sgd) {
    for (int t = 0; t < 4; t++)
        for (int s = 0; s < ODD_SIZES; s++)
            for (int skew = 0; skew < 2; skew++) {
                check_sgd(gpu_dtypes[t], odd_sizes[s], skew, (tshi_sgd){.lr = 0.1});
                check_sgd(gpu_dtypes[t], odd_sizes[s], skew, (tshi_sgd){.lr = 0.1, .weight_decay = 0.3});
                check_sgd(gpu_dtypes[t], odd_sizes[s], skew,
                          (tshi_sgd){.lr = 0.1, .momentum = 0.9, .weight_decay = 0.1, .dampening = 0.5});
                check_sgd(gpu_dtypes[t], odd_sizes[s], skew,
                          (tshi_sgd){.lr = 0.1, .momentum = 0.9, .weight_decay = 0.1, .nesterov = true});
            }
}

Test(cuda_optimizer, adamw) {
    const int64_t sizes[] = {0, 1, 7, 8, 63, 257, 4095, 4096, 4097, 9000};
    for (int t = 0; t < 4; t++)
        for (int s = 0; s < 10; s++)
            for (int skew = 0; skew < 2; skew++) {
                parameter u = parameter_make(gpu_dtypes[t], sizes[s], skew, 0);
                run_adamw(1, &u);
                parameter_free(&u);
            }
}

/* More than a launch takes, of many sizes, with empty ones between, at the end, and nothing else. */
Test(cuda_optimizer, many_parameters_at_once) {
    static parameter u[MOST];
    for (int t = 0; t < 4; t++) {
        for (int i = 0; i < MOST; i++)
            u[i] = parameter_make(gpu_dtypes[t], i == 80 ? 10000 : i % 5 == 4 ? 0 : (i * 37) % 90, i % 2, 0);
        run_adamw(MOST, u);
        run_sgd(MOST, u, (tshi_sgd){.lr = 0.1, .momentum = 0.9});
        for (int i = 0; i < MOST; i++) parameter_free(&u[i]);
    }
    tshi_cuda_optimizer[TSH_FLOAT32].adamw(gpu(), &(tshi_adamw){.step = 1}, 0, NULL);
    tshi_cuda_optimizer[TSH_FLOAT32].sgd(gpu(), &(tshi_sgd){.lr = 1}, 2, (tshi_update[2]){{.n = 0}, {.n = 0}});
}

Test(cuda_optimizer, a_state_of_float32_keeps_what_a_half_would_lose) {
    pair p = pair_make(TSH_BFLOAT16, 1, 0), grad = pair_make(TSH_BFLOAT16, 1, 0);
    float m = 1.0f, v = 1.0f;
    set(&grad.cpu, 0, 1.0);
    pair_round(&grad);
    tshi_adamw a = {.lr = 0, .beta1 = 0.999, .beta2 = 0.5, .eps = 1e-8, .step = 1};
    tshi_update u = {.n = 1, .grad = grad.gpu, .state = {&m, &v}, .p = p.gpu};
    m = 1.5f;
    tshi_cuda_optimizer[TSH_BFLOAT16].adamw(gpu(), &a, 1, &u);
    cr_assert_float_eq(m, 0.999 * 1.5 + 0.001, 1e-6);
    pair_free(&p);
    pair_free(&grad);
}

static void run_lion(tsh_dtype dtype, int64_t n, int skew) {
    tshi_lion l = {.lr = 0.01, .beta1 = 0.9, .beta2 = 0.99, .weight_decay = 0.1};
    parameter u = parameter_make(dtype, n, skew, 0.25);
    tshi_update gpu_list, cpu_list;
    list_updates(1, &u, 1, &gpu_list, &cpu_list);
    for (int step = 0; step < STEPS; step++) {
        new_gradients(1, &u);
        tshi_cuda_optimizer[dtype].lion(gpu(), &l, 1, &gpu_list);
        kernels()->optimizer[u.p.cpu.dtype].lion(kernel_device(), &l, 1, &cpu_list);
        compare(1, &u, 1);
    }
    parameter_free(&u);
}

Test(cuda_optimizer, lion) {
    for (int t = 0; t < 4; t++)
        for (int s = 0; s < ODD_SIZES; s++) run_lion(gpu_dtypes[t], odd_sizes[s], s % 2);
}

/* The CPU's kernel of the same dtype has the same bits: steps of whole numbers are exact. */
static void run_narrow(tsh_dtype dtype, int64_t n, bool has_master, bool wide, const tshi_rounding *rounding) {
    const tshi_sgd s = {.lr = 0x1p-10};
    tsh_dtype of_grad = wide ? TSH_FLOAT32 : dtype;
    buffer grad = buffer_make(of_grad, n), p[2] = {buffer_random(dtype, n, -1, 1)}, values[2];
    buffer_fill_integers(&grad);
    values[0] = buffer_make(TSH_FLOAT32, n);
    buffer_fill_integers(&values[0]);
    p[1] = buffer_copy(&p[0]);
    values[1] = buffer_copy(&values[0]);
    for (int i = 0; i < 2; i++) {
        tshi_update u = {.n = n,
                         .grad = grad.data,
                         .p = p[i].data,
                         .master = has_master ? values[i].data : NULL,
                         .rounding = rounding,
                         .wide_grad = wide};
        for (int step = 0; step < STEPS; step++) {
            if (i)
                tshi_cuda_optimizer[dtype].sgd(gpu(), &s, 1, &u);
            else
                kernels()->optimizer[dtype].sgd(kernel_device(), &s, 1, &u);
        }
    }
    cr_assert_eq(memcmp(p[0].data, p[1].data, (size_t)n * 2), 0, "n %d master %d wide %d", (int)n, has_master, wide);
    cr_assert_eq(memcmp(values[0].data, values[1].data, (size_t)n * 4), 0, "n %d: master weights", (int)n);
    for (int i = 0; i < 2; i++) {
        buffer_free(&p[i]);
        buffer_free(&values[i]);
    }
    buffer_free(&grad);
}

Test(cuda_optimizer, master_weights_wide_gradients_and_stochastic_rounding) {
    const tshi_rounding r = {.seed = 7, .stream = UINT64_C(1) << 63 | 5, .first = 11, .run = 13, .stride = 29};
    const int64_t sizes[] = {0, 1, 13, 4096, 5000};
    for (int s = 0; s < 5; s++) {
        for (int kind = 0; kind < 8; kind++)
            run_narrow(kind & 4 ? TSH_BFLOAT16 : TSH_FLOAT16, sizes[s], kind & 1, kind & 2, NULL);
        for (int kind = 0; kind < 2; kind++) run_narrow(TSH_BFLOAT16, sizes[s], false, kind, &r);
    }
}
