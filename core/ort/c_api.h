// The part of ONNX Runtime's C interface that we use, so that no header of it is needed.
//
// OrtApi is a table of functions whose order never changes; new ones come at its end. So the places
// below hold for version 17 and every later one. What we do not call is room only.
#pragma once

#include <cstddef>
#include <cstdint>

#ifdef _WIN32
#define BS_ORT_CALL __stdcall
#else
#define BS_ORT_CALL
#endif

extern "C" {

struct OrtStatus;
struct OrtSessionOptions;
struct OrtCustomOpDomain;
struct OrtMemoryInfo;
struct OrtValue;
struct OrtTypeInfo;
struct OrtTensorTypeAndShapeInfo;
struct OrtKernelInfo;
struct OrtKernelContext;
struct OrtShapeInferContext;
struct OrtOp;
struct OrtOpAttr;
struct OrtCustomOp;

enum OrtErrorCode : int { kOrtFail = 1, kOrtInvalidArgument = 2 };
enum OrtAllocatorType : int { kOrtDeviceAllocator = 0 };
enum OrtMemType : int { kOrtMemDefault = 0 };
enum OrtOpAttrType : int {
  kOrtAttrInt = 1,
  kOrtAttrInts = 2,
  kOrtAttrFloat = 3,
  kOrtAttrString = 5
};
enum OrtCharacteristic : int { kOrtRequired = 0, kOrtOptional = 1, kOrtVariadic = 2 };

// Numbers of onnx.TensorProto.DataType.
enum OrtElementType : int {
  kOrtUndefined = 0,
  kOrtFloat = 1,
  kOrtUint8 = 2,
  kOrtInt8 = 3,
  kOrtUint16 = 4,
  kOrtInt16 = 5,
  kOrtInt32 = 6,
  kOrtFloat16 = 10,
  kOrtBfloat16 = 16,
};

struct OrtApi {
  OrtStatus*(BS_ORT_CALL* CreateStatus)(OrtErrorCode code, const char* message);
  void* unused1[1];
  const char*(BS_ORT_CALL* GetErrorMessage)(const OrtStatus* status);
  void* unused3[23];
  OrtStatus*(BS_ORT_CALL* CreateCustomOpDomain)(const char* name, OrtCustomOpDomain** out);
  OrtStatus*(BS_ORT_CALL* CustomOpDomain_Add)(OrtCustomOpDomain* domain, const OrtCustomOp* op);
  OrtStatus*(BS_ORT_CALL* AddCustomOpDomain)(OrtSessionOptions* to, OrtCustomOpDomain* domain);
  void* unused29[20];
  OrtStatus*(BS_ORT_CALL* CreateTensorWithDataAsOrtValue)(const OrtMemoryInfo* where, void* data,
                                                          size_t bytes, const int64_t* shape,
                                                          size_t rank, OrtElementType type,
                                                          OrtValue** out);
  void* unused50[1];
  OrtStatus*(BS_ORT_CALL* GetTensorMutableData)(OrtValue* value, void** out);
  void* unused52[3];
  OrtStatus*(BS_ORT_CALL* CastTypeInfoToTensorInfo)(const OrtTypeInfo* info,
                                                    const OrtTensorTypeAndShapeInfo** out);
  void* unused56[1];
  OrtStatus*(BS_ORT_CALL* CreateTensorTypeAndShapeInfo)(OrtTensorTypeAndShapeInfo** out);
  OrtStatus*(BS_ORT_CALL* SetTensorElementType)(OrtTensorTypeAndShapeInfo* info,
                                                OrtElementType type);
  OrtStatus*(BS_ORT_CALL* SetDimensions)(OrtTensorTypeAndShapeInfo* info, const int64_t* dims,
                                         size_t count);
  OrtStatus*(BS_ORT_CALL* GetTensorElementType)(const OrtTensorTypeAndShapeInfo* info,
                                                OrtElementType* out);
  OrtStatus*(BS_ORT_CALL* GetDimensionsCount)(const OrtTensorTypeAndShapeInfo* info, size_t* out);
  OrtStatus*(BS_ORT_CALL* GetDimensions)(const OrtTensorTypeAndShapeInfo* info, int64_t* dims,
                                         size_t count);
  OrtStatus*(BS_ORT_CALL* GetSymbolicDimensions)(const OrtTensorTypeAndShapeInfo* info,
                                                 const char** names, size_t count);
  void* unused64[1];
  OrtStatus*(BS_ORT_CALL* GetTensorTypeAndShape)(const OrtValue* value,
                                                 OrtTensorTypeAndShapeInfo** out);
  void* unused66[3];
  OrtStatus*(BS_ORT_CALL* CreateCpuMemoryInfo)(OrtAllocatorType allocator, OrtMemType memory,
                                               OrtMemoryInfo** out);
  void* unused70[15];
  OrtStatus*(BS_ORT_CALL* KernelInfoGetAttribute_float)(const OrtKernelInfo* info, const char* name,
                                                        float* out);
  OrtStatus*(BS_ORT_CALL* KernelInfoGetAttribute_int64)(const OrtKernelInfo* info, const char* name,
                                                        int64_t* out);
  OrtStatus*(BS_ORT_CALL* KernelInfoGetAttribute_string)(const OrtKernelInfo* info,
                                                         const char* name, char* out, size_t* size);
  OrtStatus*(BS_ORT_CALL* KernelContext_GetInputCount)(const OrtKernelContext* context,
                                                       size_t* out);
  OrtStatus*(BS_ORT_CALL* KernelContext_GetOutputCount)(const OrtKernelContext* context,
                                                        size_t* out);
  OrtStatus*(BS_ORT_CALL* KernelContext_GetInput)(const OrtKernelContext* context, size_t index,
                                                  const OrtValue** out);
  OrtStatus*(BS_ORT_CALL* KernelContext_GetOutput)(OrtKernelContext* context, size_t index,
                                                   const int64_t* dims, size_t rank,
                                                   OrtValue** out);
  void* unused92[1];
  void(BS_ORT_CALL* ReleaseStatus)(OrtStatus* status);
  void(BS_ORT_CALL* ReleaseMemoryInfo)(OrtMemoryInfo* info);
  void* unused95[1];
  void(BS_ORT_CALL* ReleaseValue)(OrtValue* value);
  void* unused97[1];
  void(BS_ORT_CALL* ReleaseTypeInfo)(OrtTypeInfo* info);
  void(BS_ORT_CALL* ReleaseTensorTypeAndShapeInfo)(OrtTensorTypeAndShapeInfo* info);
  void* unused100[62];
  OrtStatus*(BS_ORT_CALL* KernelInfoGetAttributeArray_float)(const OrtKernelInfo* info,
                                                             const char* name, float* out,
                                                             size_t* size);
  OrtStatus*(BS_ORT_CALL* KernelInfoGetAttributeArray_int64)(const OrtKernelInfo* info,
                                                             const char* name, int64_t* out,
                                                             size_t* size);
  void* unused164[47];
  OrtStatus*(BS_ORT_CALL* CreateOpAttr)(const char* name, const void* data, int length,
                                        OrtOpAttrType type, OrtOpAttr** out);
  void(BS_ORT_CALL* ReleaseOpAttr)(OrtOpAttr* attribute);
  OrtStatus*(BS_ORT_CALL* CreateOp)(const OrtKernelInfo* info, const char* name, const char* domain,
                                    int version, const char** type_names,
                                    const OrtElementType* types, int type_count,
                                    const OrtOpAttr* const* attributes, int attribute_count,
                                    int inputs, int outputs, OrtOp** out);
  OrtStatus*(BS_ORT_CALL* InvokeOp)(const OrtKernelContext* context, const OrtOp* op,
                                    const OrtValue* const* inputs, int input_count,
                                    OrtValue* const* outputs, int output_count);
  void(BS_ORT_CALL* ReleaseOp)(OrtOp* op);
  void* unused216[14];
  OrtStatus*(BS_ORT_CALL* KernelInfo_GetInputCount)(const OrtKernelInfo* info, size_t* out);
  OrtStatus*(BS_ORT_CALL* KernelInfo_GetOutputCount)(const OrtKernelInfo* info, size_t* out);
  void* unused232[2];
  OrtStatus*(BS_ORT_CALL* KernelInfo_GetInputTypeInfo)(const OrtKernelInfo* info, size_t index,
                                                       OrtTypeInfo** out);
  OrtStatus*(BS_ORT_CALL* KernelInfo_GetOutputTypeInfo)(const OrtKernelInfo* info, size_t index,
                                                        OrtTypeInfo** out);
  void* unused236[8];
  OrtStatus*(BS_ORT_CALL* KernelInfo_GetNodeName)(const OrtKernelInfo* info, char* out,
                                                  size_t* size);
  void* unused245[22];
  OrtStatus*(BS_ORT_CALL* ShapeInferContext_GetInputCount)(const OrtShapeInferContext* context,
                                                           size_t* out);
  OrtStatus*(BS_ORT_CALL* ShapeInferContext_GetInputTypeShape)(const OrtShapeInferContext* context,
                                                               size_t index,
                                                               OrtTensorTypeAndShapeInfo** out);
  OrtStatus*(BS_ORT_CALL* ShapeInferContext_GetAttribute)(const OrtShapeInferContext* context,
                                                          const char* name, const OrtOpAttr** out);
  OrtStatus*(BS_ORT_CALL* ShapeInferContext_SetOutputTypeShape)(
      const OrtShapeInferContext* context, size_t index, const OrtTensorTypeAndShapeInfo* info);
  OrtStatus*(BS_ORT_CALL* SetSymbolicDimensions)(OrtTensorTypeAndShapeInfo* info,
                                                 const char** names, size_t count);
  OrtStatus*(BS_ORT_CALL* ReadOpAttr)(const OrtOpAttr* attribute, OrtOpAttrType type, void* data,
                                      size_t length, size_t* out);
  void* unused273[1];
  OrtStatus*(BS_ORT_CALL* KernelContext_ParallelFor)(const OrtKernelContext* context,
                                                     void (*task)(void*, size_t), size_t total,
                                                     size_t batches, void* argument);
};

struct OrtApiBase {
  const OrtApi*(BS_ORT_CALL* GetApi)(uint32_t version);  // nullptr if this runtime is older
  const char*(BS_ORT_CALL* GetVersionString)();
};

// Of version 17. A runtime reads what that version has, and no more.
struct OrtCustomOp {
  uint32_t version;
  void*(BS_ORT_CALL* CreateKernel)(const OrtCustomOp* op, const OrtApi* api,
                                   const OrtKernelInfo* info);
  const char*(BS_ORT_CALL* GetName)(const OrtCustomOp* op);
  const char*(BS_ORT_CALL* GetExecutionProviderType)(const OrtCustomOp* op);
  OrtElementType(BS_ORT_CALL* GetInputType)(const OrtCustomOp* op, size_t index);
  size_t(BS_ORT_CALL* GetInputTypeCount)(const OrtCustomOp* op);
  OrtElementType(BS_ORT_CALL* GetOutputType)(const OrtCustomOp* op, size_t index);
  size_t(BS_ORT_CALL* GetOutputTypeCount)(const OrtCustomOp* op);
  void(BS_ORT_CALL* KernelCompute)(void* kernel, OrtKernelContext* context);
  void(BS_ORT_CALL* KernelDestroy)(void* kernel);
  OrtCharacteristic(BS_ORT_CALL* GetInputCharacteristic)(const OrtCustomOp* op, size_t index);
  OrtCharacteristic(BS_ORT_CALL* GetOutputCharacteristic)(const OrtCustomOp* op, size_t index);
  OrtMemType(BS_ORT_CALL* GetInputMemoryType)(const OrtCustomOp* op, size_t index);
  int(BS_ORT_CALL* GetVariadicInputMinArity)(const OrtCustomOp* op);
  int(BS_ORT_CALL* GetVariadicInputHomogeneity)(const OrtCustomOp* op);
  int(BS_ORT_CALL* GetVariadicOutputMinArity)(const OrtCustomOp* op);
  int(BS_ORT_CALL* GetVariadicOutputHomogeneity)(const OrtCustomOp* op);
  OrtStatus*(BS_ORT_CALL* CreateKernelV2)(const OrtCustomOp* op, const OrtApi* api,
                                          const OrtKernelInfo* info, void** kernel);
  OrtStatus*(BS_ORT_CALL* KernelComputeV2)(void* kernel, OrtKernelContext* context);
  OrtStatus*(BS_ORT_CALL* InferOutputShapeFn)(const OrtCustomOp* op, OrtShapeInferContext* context);
  int(BS_ORT_CALL* GetStartVersion)(const OrtCustomOp* op);
  int(BS_ORT_CALL* GetEndVersion)(const OrtCustomOp* op);
};

}  // extern "C"

inline constexpr uint32_t kOrtVersion = 17;

#define BS_ORT_PLACE(name, index) static_assert(offsetof(OrtApi, name) == (index) * sizeof(void*))
BS_ORT_PLACE(GetErrorMessage, 2);
BS_ORT_PLACE(CreateCustomOpDomain, 26);
BS_ORT_PLACE(CreateTensorWithDataAsOrtValue, 49);
BS_ORT_PLACE(GetTensorMutableData, 51);
BS_ORT_PLACE(CastTypeInfoToTensorInfo, 55);
BS_ORT_PLACE(CreateTensorTypeAndShapeInfo, 57);
BS_ORT_PLACE(SetTensorElementType, 58);
BS_ORT_PLACE(SetDimensions, 59);
BS_ORT_PLACE(GetTensorTypeAndShape, 65);
BS_ORT_PLACE(CreateCpuMemoryInfo, 69);
BS_ORT_PLACE(KernelInfoGetAttribute_float, 85);
BS_ORT_PLACE(KernelContext_GetOutput, 91);
BS_ORT_PLACE(ReleaseStatus, 93);
BS_ORT_PLACE(ReleaseValue, 96);
BS_ORT_PLACE(ReleaseTypeInfo, 98);
BS_ORT_PLACE(KernelInfoGetAttributeArray_float, 162);
BS_ORT_PLACE(CreateOpAttr, 211);
BS_ORT_PLACE(ReleaseOp, 215);
BS_ORT_PLACE(KernelInfo_GetInputCount, 230);
BS_ORT_PLACE(KernelInfo_GetInputTypeInfo, 234);
BS_ORT_PLACE(KernelInfo_GetNodeName, 244);
BS_ORT_PLACE(ShapeInferContext_GetInputCount, 267);
BS_ORT_PLACE(ReadOpAttr, 272);
BS_ORT_PLACE(KernelContext_ParallelFor, 274);
#undef BS_ORT_PLACE
