// Canonical texts of all codecs, each in the forms that run other code.
#pragma once

namespace byteps_like::testing {

inline constexpr const char* kSpecs[] = {
    "fp16",
    "bf16",
    "fp8:block=32,format=e4m3",
    "fp8:block=256,format=e5m2",
    "fixed:bits=32,block=256",
    "fixed:bits=16,block=256",
    "sign:block=32768,magnitude=mean,seed=0",
    "sign:block=64,magnitude=unit,seed=0",
    "natural:seed=0",
    "int:bits=8,block=256,rounding=nearest,scale=own,seed=0",
    "int:bits=4,block=256,rounding=stochastic,scale=own,seed=0",
    "int:bits=4,block=256,rounding=stochastic,scale=shared,seed=0",
    "onebit:block=32768",
    "qsgd:block=512,levels=7,norm=max,scale=own,seed=0",
    "qsgd:block=128,levels=7,norm=max,scale=shared,seed=0",
    "ternary:block=0,clip=2.5,scale=own,seed=0",
    "dithering:block=0,levels=7,norm=max,partition=linear,seed=0",
    "dithering:block=128,levels=7,norm=max,partition=natural,seed=0",
    "eden:bits=1,seed=0",
    "eden:bits=4,seed=0",
    "thc:bits=2,clamp=16,seed=0,table=auto",
    "thc:bits=3,clamp=32,seed=0,table=auto",
    "thc:bits=4,clamp=32,seed=0,table=auto",
    "thc:bits=4,clamp=32,seed=0,table=0.22.41.58.74.89.103.117.131.145.159.174.190.207.226.248",
    "topk:ratio=0.01,select=exact",
    "topk:ratio=0.2,select=sampled",
    "randomk:ratio=0.01,scale=1,seed=0",
    "chunktopk:chunk=32,ratio=0.3",
    "bitmap",
    "sketch:block=256,density=1,seed=0",
    "sketch:block=256,density=0.01,seed=0",
    "blocksparse:block=256,dense=0.8",
    "blocksparse:block=7,dense=1",
    "coo",
    "sparseloco:chunk=4096,keep=64",
    "sparseloco:chunk=7,keep=2",
};

}  // namespace byteps_like::testing
