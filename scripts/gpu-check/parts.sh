# shellcheck shell=bash
# The parts of scripts/gpu-check.sh: tables of figures and of steps.
#    figure key asked in words
#    section   wants limit title                                    function of steps.sh

part_a() {
    figure linear_8192_bfloat16          ">= 0.97" "linear 8192, bfloat16, of its products alone"
    figure mlp_4096_eager                ">= 1.05" "mlp 4096/16384, bfloat16, against PyTorch, eager"
    figure mlp_64_eager                  ">= 2"    "mlp 64/1024/4096, bfloat16, against PyTorch, eager"
    figure mlp_64_captured               ">= 1"    "mlp 64/1024/4096, bfloat16, against PyTorch, both captured"
    figure mlp_4096_fused                ">= 2"    "products of mlp 4096/16384 into which cuBLASLt fuses the bias"
    figure mlp_4096_refused              "<= 0"    "products of mlp 4096/16384 whose epilogue cuBLASLt refuses"
    figure mlp_4096_allocations          "<= 0"    "allocations in steady steps of mlp 4096/16384"
    figure mlp_4096_host                 "<= 0.5"  "host's time to queue a step of mlp 4096/16384, of the step's (a wait would make it 1)"
    for dtype in bfloat16 float32; do
        figure layer_norm_$dtype         ">= 0.8"  "layer norm, $dtype, of a copy's bandwidth"
        figure layer_norm_bwd_$dtype     ">= 0.8"  "layer norm's gradient, $dtype, of a copy's bandwidth"
        figure cross_entropy_$dtype      ">= 0.8"  "cross entropy, $dtype, of a copy's bandwidth"
        figure cross_ent_bwd_$dtype      ">= 0.8"  "cross entropy's gradient, $dtype, of a copy's bandwidth"
        figure adamw_$dtype              ">= 0.8"  "AdamW, $dtype, of a copy's bandwidth"
        figure embedding_grad_$dtype     ">= 0.8"  "embedding's gradient, $dtype, of a copy's bandwidth"
    done
    step machine    2   30 "the GPU"                                  gpu
    step probe     10   60 "the probe of CUDA is built"               probe_build gpu_probe
    step probe     10  120 "what CUDA does"                           cuda
    step probe      2   30 "streams with 32 queues"                   queues 32
    stay
    step build     60  300 "build"                                    build
    step kernels    2   60 "kernels beside a copy, bfloat16"          kernels bfloat16
    step layers     4   60 "attention, and against our own, bfloat16" attention
    step layers     2   60 "attention without cuDNN, bfloat16"        own_attention
    step layers     2   60 "linear 8192, bfloat16"                    linear 8192 bfloat16
    step layers     2   60 "linear 8192, bfloat16, captured"          linear 8192 bfloat16 --graph
    step layers     2   60 "mlp 4096/16384, bfloat16"                 mlp 4096 4096 16384
    step layers     2   60 "mlp 4096/16384, captured"                 mlp 4096 4096 16384 --graph
    step layers     2   60 "mlp 64/1024/4096, bfloat16"               mlp 64 1024 4096
    step layers     2   60 "mlp 64/1024/4096, captured"               mlp 64 1024 4096 --graph
    step kernels    2   60 "kernels beside a copy, float32"           kernels float32
    step layers     2   60 "linear 4096, float32"                     linear 4096 float32
    step layers     2   60 "linear 4096, TF32"                        tf32 linear 4096 float32
    step vectors   35  100 "golden vectors, a choice, 1 and 2 ranks"  vectors_chosen
    step torch    100  180 "layers beside PyTorch"                    torch_layers
}

part_b() {
    step machine    2   30 "the GPU"                                  gpu
    step probe     10   60 "the probe of CUDA is built"               probe_build gpu_probe
    stay
    step build    120  330 "build, with the suites"                   build tests
    step suites    15  120 "the kernels' own suites"                  kernel_suites
    step suites    60  240 "suites, 4 at once"                        suites
    step ranks      4   60 "mlp, two ranks on the GPU"                two_ranks mlp
    step ranks      5   60 "a text, two ranks on the GPU"             two_ranks text
    step sanitizer 15  120 "racecheck: kernels, bfloat16"             sanitize_kernels racecheck bfloat16
    step sanitizer 15  120 "racecheck: kernels, float32"              sanitize_kernels racecheck float32
    step sanitizer 15  120 "memcheck: kernels, bfloat16"              sanitize_kernels memcheck bfloat16
    step sanitizer 15  120 "initcheck: kernels, bfloat16"             sanitize_kernels initcheck bfloat16
    step sanitizer 30  120 "memcheck: golden vectors"                 sanitize_vectors memcheck
    step vectors   90  300 "golden vectors, all"                      vectors
    step sanitizer 30  120 "racecheck: golden vectors"                sanitize_vectors racecheck
}

part_c() {
    figure gpt_train                     ">= 1"    "GPT-2 124M, tokens/s of training against the better of PyTorch's, eager and compiled"
    figure gpt_generate                  ">= 0.85" "GPT-2 124M, generation's share of the bandwidth that its weights need"
    step machine    2   30 "the GPU"                                  gpu
    step probe     10   60 "the probe of CUDA is built"               probe_build gpu_probe
    step nccl      10   60 "the probe of NCCL is built"               probe_build nccl_probe
    stay
    step nccl      20  120 "what NCCL does, one rank"                 nccl 1
    step nccl      20  120 "what NCCL does, two ranks"                nccl 2
    step build     60  300 "build"                                    build
    step gpt       80  200 "GPT-2 124M, training"                     gpt train
    step gpt        4  100 "GPT-2 124M, generation"                   gpt generate
    step nccl      10   60 "a text, two ranks over NCCL"              two_ranks text nccl
    step lost       4   60 "a rank is killed"                         lost KILL
    step lost      16   60 "a rank is stopped"                        lost STOP
    step lost      15   60 "a rank is killed, over NCCL"              lost KILL nccl
    step lost      25   60 "a rank is stopped, over NCCL"             lost STOP nccl
}
