//! Memory as DLPack: what `torch.from_dlpack` and any other array library takes without a copy.
//!
//! Layout of the structures: dlpack.h of DLPack 1.0 (and the unversioned capsule of 0.8, for consumers that do not ask for
//! more); protocol: the Python array API standard, `__dlpack__`. A capsule, and every tensor made of it, owns a reference to
//! what it shows.

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

/// Where memory is: `DLDevice`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Device {
    kind: i32,
    index: i32,
}

impl Device {
    /// Plain memory: kDLCPU.
    pub const CPU: Device = Device { kind: 1, index: 0 };

    /// The memory of the CUDA device with this number, which is also torch's: kDLCUDA.
    pub const fn cuda(ordinal: u32) -> Device {
        Device { kind: 2, index: ordinal as i32 }
    }

    /// Where tier 0 is.
    ///
    /// # Errors
    /// `DeviceFailed`: a device that was named by its UUID cannot be found again.
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
        let gone = || raise(Status::Device, "the device of this session is not there any more");
        found.map(|info| Device::cuda(info.ordinal)).ok_or_else(gone)
    }
}

/// Type of an element: `DLDataType`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Element {
    code: u8,
    bits: u8,
    lanes: u16,
}

/// Bytes.
pub const U8: Element = Element { code: 1, bits: 8, lanes: 1 };
/// Table entries: torch does not compute with uint32, and no frame needs the top bit.
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

// SAFETY: of whoever calls one: the argument is what `__dlpack__` made, and is not used afterwards.
type Deleter<T> = unsafe extern "C" fn(*mut T);
// SAFETY: likewise; the argument is a capsule at its end.
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

/// What keeps the memory where it is.
type Keep = Box<dyn Send + Sync>;

/// What a capsule owns.
struct Context {
    shape: Vec<i64>,
    strides: Vec<i64>,
    _keep: Arc<Keep>,
}

/// A piece of memory that array libraries can take: `kvtide.Memory`.
#[pyclass(frozen, module = "kvtide")]
pub struct Memory {
    data: usize,
    device: Device,
    element: Element,
    shape: Vec<i64>,
    keep: Arc<Keep>,
}

impl Memory {
    /// Dense memory at `data`, which stays there as long as `keep` lives.
    pub fn new(data: *mut c_void, device: Device, element: Element, shape: Vec<i64>, keep: Keep) -> Memory {
        Memory { data: data.expose_provenance(), device, element, shape, keep: Arc::new(keep) }
    }

    /// Numbers of its own.
    pub fn owned(mut numbers: Box<[i32]>, shape: Vec<i64>) -> Memory {
        let at = numbers.as_mut_ptr();
        Memory::new(at.cast(), Device::CPU, I32, shape, Box::new(numbers))
    }

    /// A tensor whose shape and strides lie in the context it comes with.
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

    /// Elements of each dimension.
    #[getter]
    fn shape(&self) -> Vec<i64> {
        self.shape.clone()
    }

    /// Type of an element, as torch and numpy call it.
    #[getter]
    fn dtype(&self) -> String {
        let kind = if self.element.code == U8.code { "uint" } else { "int" };
        format!("{kind}{}", self.element.bits)
    }

    fn __dlpack_device__(&self) -> (i32, i32) {
        (self.device.kind, self.device.index)
    }

    /// A capsule. No work of ours is pending on the memory when it is handed out, so a consumer's stream has nothing to wait for.
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
            return Err(value("stream: memory of a CPU has no streams"));
        }
        if dl_device.is_some_and(|device| device != self.__dlpack_device__()) || copy == Some(true) {
            return Err(PyBufferError::new_err("kvtide's memory is shown where it is, and never copied"));
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
        // SAFETY: `at` is a fresh box of the structure that the name stands for, the destructor is that name's, and the name
        // is static.
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

/// Called once by whoever took the tensor out of its capsule, when it needs it no more.
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

/// As [`delete`].
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

/// A capsule's end: one that nobody took (a consumer renames it) still owns its tensor.
///
/// # Safety
/// `capsule` is one that `__dlpack__` made, at its end.
unsafe extern "C" fn drop_tensor(capsule: *mut PyObject) {
    // SAFETY: the name says that nobody took the tensor, so it is the one that was put in.
    unsafe {
        if PyCapsule_IsValid(capsule, TENSOR.as_ptr()) == 1 {
            delete(PyCapsule_GetPointer(capsule, TENSOR.as_ptr()).cast());
        }
    }
}

/// As [`drop_tensor`].
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
