#include "nn/ops.h"
#include "nn/ops_check.h"

/* f, f' and f'' as kernels. */
typedef struct FunctionKernels {
    const char *name, *grad_name;
    UnaryKind value, slope, bend;
} FunctionKernels;

static const FunctionKernels functions[] = {
    [FUNCTION_RELU] = {"relu", "relu_grad", UNARY_RELU, UNARY_STEP, UNARY_STEP},
    [FUNCTION_SILU] = {"silu", "silu_grad", UNARY_SILU, UNARY_DSILU, UNARY_D2SILU},
    [FUNCTION_GELU] = {"gelu", "gelu_grad", UNARY_GELU, UNARY_DGELU, UNARY_D2GELU},
    [FUNCTION_GELU_TANH] = {"gelu_tanh", "gelu_tanh_grad", UNARY_GELU_TANH, UNARY_DGELU_TANH,
                            UNARY_D2GELU_TANH},
    [FUNCTION_TANH] = {"tanh", "tanh_grad", UNARY_TANH, UNARY_DTANH, UNARY_D2TANH},
    [FUNCTION_SIGMOID] = {"sigmoid", "sigmoid_grad", UNARY_SIGMOID, UNARY_DSIGMOID,
                          UNARY_D2SIGMOID},
};

Var *op_function(Tape *t, Var *x, Function f) {
    if (f == FUNCTION_IDENTITY) return x;
    const FunctionKernels *k = &functions[f];
    return op_unary(t, k->name, x, k->value, k->slope);
}

Var *op_function_grad(Tape *t, Var *x, Function f) {
    if (f == FUNCTION_IDENTITY) return NULL;
    const FunctionKernels *k = &functions[f];
    /* A step has no slope: nothing is recorded. */
    Var *in = f == FUNCTION_RELU ? op_detach(t, x) : x;
    return op_unary(t, k->grad_name, in, k->slope, k->bend);
}

Var *op_exp(Tape *t, Var *x) {
    return op_unary(t, "exp", x, UNARY_EXP, UNARY_EXP);
}

Var *op_log(Tape *t, Var *x) {
    return op_unary(t, "log", x, UNARY_LOG, UNARY_DLOG);
}

Var *op_sign(Tape *t, Var *x) {
    return op_unary(t, "sign", op_detach(t, x), UNARY_SIGN, UNARY_SIGN);
}

Var *op_rsqrt(Tape *t, Var *x) {
    return op_unary(t, "rsqrt", x, UNARY_RSQRT, UNARY_DRSQRT);
}
