/* tshard: tensor-parallel model sharding with a minimal autograd, for C. */
#ifndef TSHARD_TSHARD_H
#define TSHARD_TSHARD_H

#include "tshard/autograd.h"
#include "tshard/base.h"
#include "tshard/checkpoint.h"
#include "tshard/custom.h"
#include "tshard/device.h"
#include "tshard/dist.h"
#include "tshard/functional.h"
#include "tshard/generate.h"
#include "tshard/graph.h"
#include "tshard/io.h"
#include "tshard/layers.h"
#include "tshard/layout.h"
#include "tshard/tensor.h"
#include "tshard/tokenizer.h"
#include "tshard/trace.h"
#include "tshard/train.h"

#endif
