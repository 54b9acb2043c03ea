//! Memory as DLPack, for `torch.from_dlpack` and other array libraries, without a copy.
//!
//! The structures follow dlpack.h of DLPack 1.0, and the unversioned capsule of 0.8 for consumers that do not request a version.
//! The protocol is `__dlpack__` of the Python array API standard. A capsule, and every tensor made from it, owns a reference to its
//! memory.

use crate::error::{raise, value};
use kvtide_client::{CudaDevice, DeviceChoice, cuda::Driver};
use kvtide_wire::status::Status;
use pyo3::{
    exceptions::PyBufferError,
    ffi::{PyCapsule_GetPointer, PyCapsule_IsValid, PyCapsule_New, PyObject},
    prelude::*,
};
use std::{
    ffi::{CStr, c_void},
    sync::Arc,
};

const TENSOR: &CStr = c"dltensor";
const VERSIONED: &CStr = c"dltensor_versioned";

/// Location of memory: `DLDevice`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Device {
    kind: i32,
    index: i32,
}

impl Device {
    /// Host memory: kDLCPU.
    pub const CPU: Device = Device { kind: 1, index: 0 };

    /// Memory of CUDA device `ordinal`, numbered as in torch: kDLCUDA.
    pub const fn cuda(ordinal: u32) -> Device {
        Device { kind: 2, index: ordinal as i32 }
    }

    /// Return the location of tier 0.
    ///
    /// # Errors
    /// `DeviceFailed` if a device named by UUID is no longer there.
    pub fn of(choice: &DeviceChoice) -> PyResult<Device> {
        let device = match choice {
            DeviceChoice::Cuda { device, .. } | DeviceChoice::GivenCuda { device, .. } => device,
            _ => return Ok(Device::CPU),
        };
        let uuid = match device {
            CudaDevice::Ordinal(ordinal) => return Ok(Device::cuda(*ordinal)),
            CudaDevice::Uuid { bytes, .. } => bytes,
        };
        let driver = Driver::probe().map_err(|e| crate::cuda::from(&e))?;
        let found = driver.devices().iter().find(|info| info.uuid.bytes == *uuid);
        let gone = || raise(Status::Device, "the session's device is no longer there");
        found.map(|info| Device::cuda(info.ordinal)).ok_or_else(gone)
    }
}

/// Element type: `DLDataType`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Element {
    code: u8,
    bits: u8,
    lanes: u16,
}

/// Bytes.
pub const U8: Element = Element { code: 1, bits: 8, lanes: 1 };
/// Table entries. Signed, because torch does not compute with uint32, and no frame number needs the top bit.
pub const I32: Element = Element { code: 0, bits: 32, lanes: 1 };

#[repr(C)]
struct Tensor {
    data: *mut c_void,
    device: Device,
    dimensions: i32,
    element: Element,
    shape: *mut i64,
    strides: *mut i64,
    byte_offset: u64,
}

// SAFETY: the caller passes a structure that `__dlpack__` made, and does not use it afterwards.
type Deleter<T> = unsafe extern "C" fn(*mut T);
// SAFETY: the caller passes a capsule that is being destroyed.
type Destructor = unsafe extern "C" fn(*mut PyObject);

#[repr(C)]
struct Managed {
    tensor: Tensor,
    context: *mut c_void,
    deleter: Option<Deleter<Managed>>,
}

#[repr(C)]
struct Versioned {
    major: u32,
    minor: u32,
    context: *mut c_void,
    deleter: Option<Deleter<Versioned>>,
    flags: u64,
    tensor: Tensor,
}

/// Owner of the memory.
type Keep = Box<dyn Send + Sync>;

/// Data owned by a capsule.
struct Context {
    shape: Vec<i64>,
    strides: Vec<i64>,
    _keep: Arc<Keep>,
}

/// Memory that array libraries can use without a copy: `kvtide.Memory`.
#[pyclass(frozen, module = "kvtide")]
pub struct Memory {
    data: usize,
    device: Device,
    element: Element,
    shape: Vec<i64>,
    keep: Arc<Keep>,
}

impl Memory {
    /// Wrap dense memory at `data`, which stays valid as long as `keep` lives.
    pub fn new(data: *mut c_void, device: Device, element: Element, shape: Vec<i64>, keep: Keep) -> Memory {
        Memory { data: data.expose_provenance(), device, element, shape, keep: Arc::new(keep) }
    }

    /// Wrap numbers that this object owns.
    pub fn owned(mut numbers: Box<[i32]>, shape: Vec<i64>) -> Memory {
        let at = numbers.as_mut_ptr();
        Memory::new(at.cast(), Device::CPU, I32, shape, Box::new(numbers))
    }

    /// Return a tensor, and the context that holds its shape and strides.
    fn tensor(&self) -> (Tensor, Box<Context>) {
        let mut strides = vec![1; self.shape.len()];
        for dimension in (1..self.shape.len()).rev() {
            strides[dimension - 1] = strides[dimension] * self.shape[dimension];
        }
        let mut context = Box::new(Context { shape: self.shape.clone(), strides, _keep: Arc::clone(&self.keep) });
        let tensor = Tensor {
            data: std::ptr::with_exposed_provenance_mut(self.data),
            device: self.device,
            dimensions: self.shape.len() as i32,
            element: self.element,
            shape: context.shape.as_mut_ptr(),
            strides: context.strides.as_mut_ptr(),
            byte_offset: 0,
        };
        (tensor, context)
    }
}

#[pymethods]
impl Memory {
    /// Address of the first byte.
    #[getter]
    fn address(&self) -> usize {
        self.data
    }

    /// Sizes of the dimensions.
    #[getter]
    fn shape(&self) -> Vec<i64> {
        self.shape.clone()
    }

    /// Element type, as named by torch and numpy.
    #[getter]
    fn dtype(&self) -> String {
        let kind = if self.element.code == U8.code { "uint" } else { "int" };
        format!("{kind}{}", self.element.bits)
    }

    fn __dlpack_device__(&self) -> (i32, i32) {
        (self.device.kind, self.device.index)
    }

    /// Return a capsule. No kvtide work on the memory is pending, so a consumer's stream has nothing to wait for.
    #[pyo3(signature = (*, stream=None, max_version=None, dl_device=None, copy=None))]
    fn __dlpack__<'py>(
        &self,
        py: Python<'py>,
        stream: Option<i64>,
        max_version: Option<(u32, u32)>,
        dl_device: Option<(i32, i32)>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        if self.device == Device::CPU && stream.is_some() {
            return Err(value("stream: memory of a CPU has no streams; pass None"));
        }
        if dl_device.is_some_and(|device| device != self.__dlpack_device__()) || copy == Some(true) {
            return Err(PyBufferError::new_err("kvtide's memory cannot change its device and is never copied"));
        }
        let (tensor, context) = self.tensor();
        let context = Box::into_raw(context).cast();
        let (at, name, destructor): (*mut c_void, _, Destructor) = if max_version.is_some_and(|v| v.0 >= 1) {
            let deleter = Some(delete_versioned as Deleter<Versioned>);
            let managed = Versioned { major: 1, minor: 0, context, deleter, flags: 0, tensor };
            (Box::into_raw(Box::new(managed)).cast(), VERSIONED, drop_versioned)
        } else {
            let deleter = Some(delete as Deleter<Managed>);
            (Box::into_raw(Box::new(Managed { tensor, context, deleter })).cast(), TENSOR, drop_tensor)
        };
        // SAFETY: `at` is a new box of the structure that belongs to the name, the destructor is that name's, and the name is
        // static.
        unsafe {
            let capsule = PyCapsule_New(at, name.as_ptr(), Some(destructor));
            if capsule.is_null() && name == VERSIONED {
                delete_versioned(at.cast());
            } else if capsule.is_null() {
                delete(at.cast());
            }
            Bound::from_owned_ptr_or_err(py, capsule)
        }
    }
}

/// Free a tensor. The consumer that took it from its capsule calls this once.
///
/// # Safety
/// `managed` came from `__dlpack__` and is not used afterwards.
unsafe extern "C" fn delete(managed: *mut Managed) {
    // SAFETY: both boxes were made in `__dlpack__`, and this is their one end.
    unsafe {
        let managed = Box::from_raw(managed);
        drop(Box::from_raw(managed.context.cast::<Context>()));
    }
}

/// Free a versioned tensor, like [`delete`].
///
/// # Safety
/// As [`delete`].
unsafe extern "C" fn delete_versioned(managed: *mut Versioned) {
    // SAFETY: as in `delete`.
    unsafe {
        let managed = Box::from_raw(managed);
        drop(Box::from_raw(managed.context.cast::<Context>()));
    }
}

/// Destroy a capsule. A consumer that takes the tensor renames the capsule; without that the capsule still owns the tensor.
///
/// # Safety
/// `capsule` was made by `__dlpack__` and is being destroyed.
unsafe extern "C" fn drop_tensor(capsule: *mut PyObject) {
    // SAFETY: the name has not changed, so the capsule still holds its own tensor.
    unsafe {
        if PyCapsule_IsValid(capsule, TENSOR.as_ptr()) == 1 {
            delete(PyCapsule_GetPointer(capsule, TENSOR.as_ptr()).cast());
        }
    }
}

/// Destroy a versioned capsule, like [`drop_tensor`].
///
/// # Safety
/// As [`drop_tensor`].
unsafe extern "C" fn drop_versioned(capsule: *mut PyObject) {
    // SAFETY: as in `drop_tensor`.
    unsafe {
        if PyCapsule_IsValid(capsule, VERSIONED.as_ptr()) == 1 {
            delete_versioned(PyCapsule_GetPointer(capsule, VERSIONED.as_ptr()).cast());
        }
    }
}
